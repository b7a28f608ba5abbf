"""``vllm serve`` for vLLM's CPU build, whose own command fails because it looks for a package of another name."""

from __future__ import annotations


def main() -> None:
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    cli_env_setup()
    parser = FlexibleArgumentParser(description="vLLM CLI")
    serve = ServeSubcommand()
    serve.subparser_init(parser.add_subparsers(required=True, dest="subparser"))
    options = parser.parse_args()
    configure_logging_from_args(options)
    serve.validate(options)
    serve.cmd(options)


if __name__ == "__main__":
    main()
