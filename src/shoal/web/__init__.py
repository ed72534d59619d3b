"""The page that `shoal explore` opens: look at privacy instead of reading about it.

`setting` turns the texts on the page into a mechanism and questions; `fields` lists what the page consists of;
`utility` says what the noise costs; `calls` writes the same question in Python and for the shell; `budget` reads a
ledger. `tasks` answers, piece by piece, in processes (`workers`) that can be stopped at any time; `server` carries the
pieces to the browser, on this machine only. `page/` is what the browser loads: it shows strings that were made here,
rounded to the safe side, and rounds nothing itself. All fields of mechanisms follow from their `Parameter`s.
"""
