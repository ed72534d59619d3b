"""The page that `shoal explore` opens: look at privacy instead of reading about it.

`setting` turns what stands on the page into a mechanism and questions; `utility` says what the noise costs; `calls`
writes the same question in Python and for the shell; `papers` writes the statement for a document; `budget` reads a
ledger. `tasks` answers, piece by piece, in processes (`lanes`) that can be stopped at any time; `server` carries the
pieces to the browser, on this machine only. `page/` is what the browser loads: it shows strings that were made here,
rounded to the safe side, and rounds nothing itself.
"""
