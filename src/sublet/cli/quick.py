"""Reads the usual command lines of `sublet run` without click.

Click takes longer to load than the broker takes to answer. Anything unusual (help, a misspelt
option, short options written together) is left to click; what both can read, they read alike.
"""

VALUES = {
    "--memory": "memory",
    "--mem": "memory",
    "--device": "device",
    "--gpu": "device",
    "--gpus": "gpus",
    "--cpus": "cpus",
    "--on-oom": "on_oom",
    "-n": "name",
    "--name": "name",
    "--python": "python",
    "--notify": "notify",
    "--on": "on",
    "--report": "report",
}
FLAGS = {
    "--cold": "cold",
    "--dry-run": "dry_run",
    "--fence": "fence",
    "--leave-children": "leave_children",
    "-q": "quiet",
    "--quiet": "quiet",
}
OFF = {"--no-fence": "fence"}
OPTIONAL = {"--profile": "profile"}
"""Have a value only if it is written with `=`: the next word is the program."""


def read(words: list[str]) -> dict[str, object] | None:
    """The options and the program's words; None if click has to read them."""
    options: dict[str, object] = {}
    rest = words[::-1]
    while rest and rest[-1].startswith("-") and rest[-1] != "-":
        word = rest.pop()
        if word == "--":
            break
        if word == "-m":  # A module, and what follows are its arguments.
            rest.append(word)
            break
        name, equals, value = word.partition("=")
        if word in FLAGS:
            options[FLAGS[word]] = True
        elif word in OFF:
            options[OFF[word]] = False
        elif name in OPTIONAL:
            options[OPTIONAL[name]] = value
        elif name in VALUES and name.startswith("--") and equals:
            options[VALUES[name]] = value
        elif word in VALUES and rest:
            options[VALUES[word]] = rest.pop()
        else:
            return None
    if not rest:
        return None
    return options | {"words": tuple(rest[::-1])}
