"""Extension of griffe: examples with a prompt become code blocks."""

import re

import griffe

_EXAMPLE = re.compile(r"^>>> .*?(?=\n[ \t]*\n|\Z)", re.MULTILINE | re.DOTALL)


class Examples(griffe.Extension):
    """Puts every doctest of a docstring, from the prompt to the next empty line, into a fence."""

    def on_object(self, *, obj, **kwargs):
        if obj.docstring is not None:
            obj.docstring.value = _EXAMPLE.sub(lambda m: f"```pycon\n{m.group(0)}\n```", obj.docstring.value)
