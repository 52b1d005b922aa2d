"""Training as a film: frames that a run leaves in a folder (film.py), and a page made of them (film_page.py).

with minicaffe.Film(solver, "film", every=50, net="test.prototxt", images=["photo.jpg"]) as film:
    solver.solve()
film.write()
"""

from .film import Film
from .film_page import write_film

__all__ = ["Film", "write_film"]
