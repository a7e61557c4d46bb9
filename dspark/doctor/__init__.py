"""What is wrong here, and what to do about it: one report for the terminal, for programs and for the server."""

from dspark.doctor.check import Check
from dspark.doctor.examination import examine
from dspark.doctor.port import Address
from dspark.doctor.report import Report

__all__ = ["Address", "Check", "Report", "examine"]
