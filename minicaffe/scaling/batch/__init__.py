"""Detection on many images: what a batch is, the same whichever engine hands the batches out.

    find       files, folders, lists, Parquet, URIs     -> one long row of images, cut into parts of a fixed number (sources)
    detector   net + weights + settings                 -> a picture becomes a row: its detections, or its error
    part       the rows of a part                       -> part-00007.parquet in a folder, written whole or not at all
    engine     local_engine, ray_engine                 -> which process does which part

A part's content and name depend on its number alone: not on the engine, the number of workers, or how often it was begun.
"""
