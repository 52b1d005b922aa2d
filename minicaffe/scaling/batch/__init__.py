"""Detection on many images, by one process or on Ray.

    find       files, folders, lists, Parquet, URIs     -> one sequence of images, cut into parts of equal size (sources)
    recipe     net + weights + settings                 -> an image becomes a row: its detections, or its error
    parts      the rows of a part                       -> part-00007.parquet in a folder, written whole or not at all
    engine     parts.run_local, ray_engine              -> assigns parts to processes

A part's content and name depend only on its number, not on the engine, the number of workers or restarts.
"""
