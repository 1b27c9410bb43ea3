"""Exact difference quotients of PyTorch's operations: for each, a linear map that takes x − r to f(x) − f(r).

A rule is given an operation's values at two points, x and r, and its arguments, in which what differs between the
points is a :class:`Pair`. It returns a :class:`Linear` for each output: a map, linear in the changes of the pairs, that
takes their differences x − r exactly to the output's. A change has a leading axis, over which the map is repeated.

Linear operations are their own quotient. The others:

- f of each number by itself: (f(x) − f(r)) / (x − r), and the slope of f where x and r meet.
- a product: the mean of one factor times the change of the other, and the other way round.
- a softmax exp(z − log Σ exp z): the logarithmic mean of its two values, times the change of z less its mean under
  those logarithmic means.
- a layer norm c · i, of centred numbers c and i = 1 / √(variance + ε), in two ways, alone or mixed. As a
  product: i changes by −i_x² i_r² / (i_x + i_r) per unit of variance, and the variance by the mean of (c_x + c_r) times
  the change of c. And as the paper does with a whole encoder: its Jacobian, averaged along the line from r to x.
- a maximum: where the largest entry is i at x and j at r, shares of the changes of these two, in the proportion in
  which the line from r to x is divided by the point where one overtakes the other.
"""

from whymatch.paths.rules import attention, elementwise, largest, products  # noqa: F401 to register their rules
from whymatch.paths.rules.linear import BLANK, RULES, Linear, NoRule, Pair
from whymatch.paths.rules.moving import put, take
from whymatch.paths.rules.norms import NORMS, Norm, Restraint

__all__ = ["BLANK", "NORMS", "RULES", "Linear", "NoRule", "Norm", "Pair", "Restraint", "put", "take"]
