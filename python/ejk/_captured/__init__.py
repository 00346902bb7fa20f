# SPDX-License-Identifier: Apache-2.0
"""Objects taken apart: their arrays and floats, and everything else as words that can be compared.

An array of NumPy is no such array but a word, by its content: code may do with it what NumPy alone can.

`Seen` follows what a callable or an object can reach: closure cells, defaults, the globals and modules that its code
reads, bound methods, partials, attributes, containers. Two objects with equal words do the same with equal arrays and
floats. `Maker` makes an object of the words and other arrays, and leaves the one that they came from as it is. What
cannot be followed is `Opaque`: what it does may be different every time.

The words hold no function, closure or object of a user's, so that keeping them keeps none of those alive.
"""

from ejk._captured.maker import Maker
from ejk._captured.objects import is_of_python, slots_of
from ejk._captured.seen import Seen
from ejk._captured.values import classes_in, has_attributes, has_data, has_functions, is_plain, told_apart
from ejk._captured.words import Opaque, codes_of_functions, outline_of, things_of_libraries

__all__ = [
    "Maker",
    "Opaque",
    "Seen",
    "classes_in",
    "codes_of_functions",
    "has_attributes",
    "has_data",
    "has_functions",
    "is_of_python",
    "is_plain",
    "outline_of",
    "slots_of",
    "things_of_libraries",
    "told_apart",
]
