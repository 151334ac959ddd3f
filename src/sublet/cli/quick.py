"""The usual command lines of `sublet run`, read without click.

Click takes longer to load than the broker takes to answer. Whatever is not plain here (help, a
misspelt option, letters written together) is left to click, which says best what is wrong with it;
what both read, they read alike.
"""

VALUES = {
    "-m": "memory",
    "--memory": "memory",
    "--device": "device",
    "--cpus": "cpus",
    "--on-oom": "on_oom",
    "--name": "name",
    "--python": "python",
    "--report": "report",
}
FLAGS = {
    "--cold": "cold",
    "--leave-children": "leave_children",
    "-q": "quiet",
    "--quiet": "quiet",
}


def read(words: list[str]) -> dict[str, object] | None:
    """The options and the program's words; None if click is to look at them."""
    options: dict[str, object] = {}
    rest = words[::-1]
    while rest and rest[-1].startswith("-") and rest[-1] != "-":
        word = rest.pop()
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word in FLAGS:
            options[FLAGS[word]] = True
        elif name in VALUES and name.startswith("--") and equals:
            options[VALUES[name]] = value
        elif word in VALUES and rest:
            options[VALUES[word]] = rest.pop()
        else:
            return None
    if not rest:
        return None
    return options | {"words": tuple(rest[::-1])}
