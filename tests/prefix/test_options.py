"""The settings of the prefix cache arrive in the engine."""

from prefix.pairs import ask, tokens

from dspark.commands.options import load_options
from dspark.engine import Engine
from dspark.prefix.options import PrefixOptions
from dspark.settings import resolve


def options(**variables):
    return load_options(resolve({}, {f"MLX_DSPARK_{name}": value for name, value in variables.items()})).prefix


def test_the_defaults_of_the_table_are_those_of_the_engine():
    assert options() == PrefixOptions()


def test_every_setting_arrives():
    assert options(
        PREFIX_CACHE="no",
        PREFIX_CACHE_SLOTS="3",
        PREFIX_CACHE_RUNGS="512",
        PREFIX_CACHE_BYTES="1000",
        PREFIX_CACHE_DIR="~/kept",
        PREFIX_CACHE_DISK_BYTES="2000",
    ) == PrefixOptions(enabled=False, slots=3, rung_tokens=512, limit_bytes=1000, folder="~/kept", disk_bytes=2000)


def test_the_engine_goes_by_them(home, tmp_path):
    engine = home.engine("hybrid", slots=2, rung_tokens=16, limit_bytes=12_345_678, folder=str(tmp_path))
    ask(engine, tokens(70))
    report = engine.prefix_cache.report()
    assert (report.slot_limit, report.limit_bytes, report.disk.folder) == (2, 12_345_678, str(tmp_path))
    assert report.checkpoints == 5, "four rungs and the end of the prompt"
    assert Engine().prefix_cache is None
