from __future__ import annotations

from typer.testing import CliRunner

from clocs.cli.main import app as command_line


def test_the_command_refuses_bad_arguments_with_a_sentence() -> None:
    for arguments, expected in (
        (["--host", "0.0.0.0"], "`token`"),
        (["--host", "0.0.0.0", "--token", "short"], "16 to 128"),
        (["--embeddings", "nowhere.parquet"], "nowhere.parquet"),
        (["--store", "only-a-store"], "only-a-store"),
    ):
        result = CliRunner().invoke(command_line, ["explore", "--no-browser", *arguments])
        assert result.exit_code != 0
        assert expected in str(result.exception)
        assert result.exception is not None
        assert isinstance(result.exception, Exception)
