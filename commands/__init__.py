"""One thin file per subcommand: parse, call one function below, render."""
