"""The client side of Tidegate: many files through a gateway, from here. It does not need the package `gateway`.

The modules, in the order in which a file travels:

    inputs.py      paths, folders, patterns, lists → one input after the other, in order
    reading.py     files → bytes, and what fits into one request
    pace.py        how many requests are under way, and when none may be
    client.py      one request, and what its answer means
    wording.py     what the other side says, as it may be shown
    delivery.py    until a batch is answered: again, in halves, or not at all
    spool.py       what is known so far, on disk: for `--resume`
    features.py    the spool → .npz or .parquet

`bulk.py` sends them on their way, `extraction.py` does it for features, `progress.py` tells how far it is.
"""
