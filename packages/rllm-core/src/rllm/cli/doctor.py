"""``rllm doctor``: what would keep rLLM from working on this machine, each with the next step."""

__all__ = ["command"]

import sys

import click

from rllm.cli.output import json_option, print_json

MARKS = {"ok": "ok  ", "note": "note", "problem": "NO  "}


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Look for what would keep rLLM from working here: versions, memory, threads, precision, ports, plugins.

    Exit status 1 where there is a problem. Nothing is changed, and nothing is fetched.
    """
    from rllm.cli.diagnosis import examine

    findings = examine()
    if as_json:
        print_json(findings)
    else:
        for finding in findings:
            click.echo(f"{MARKS[finding.status]}  {finding.name:<13} {finding.what}")
            if finding.next_step:
                click.echo(f"      {'':<13} → {finding.next_step}")
    if any(finding.status == "problem" for finding in findings):
        sys.exit(1)
