"""Reverse-mode differentiation over float64 NumPy arrays: each operation is its formula and its
vector-Jacobian product, nothing else. Everything that golden.py trains is composed of these."""
import math

import numpy as np

ERF = np.vectorize(math.erf, otypes=[np.float64])


class Node:
    """A value, and how the gradient with respect to it becomes gradients of its parents."""

    def __init__(self, value, parents=()):
        self.value = np.asarray(value, dtype=np.float64)
        self.parents = parents
        self.grad = None

    def __add__(self, other):
        return binary(self, other, np.add, lambda g, a, b: g, lambda g, a, b: g)

    def __sub__(self, other):
        return binary(self, other, np.subtract, lambda g, a, b: g, lambda g, a, b: -g)

    def __mul__(self, other):
        return binary(self, other, np.multiply, lambda g, a, b: g * b, lambda g, a, b: g * a)

    def __truediv__(self, other):
        return binary(self, other, np.divide, lambda g, a, b: g / b, lambda g, a, b: -g * a / b**2)

    def __matmul__(self, other):
        return binary(self, other, np.matmul, lambda g, a, b: g @ np.swapaxes(b, -1, -2),
                      lambda g, a, b: np.swapaxes(a, -1, -2) @ g)

    def reshape(self, *shape):
        return Node(self.value.reshape(shape), [(self, lambda g: g.reshape(self.value.shape))])

    def swap(self, a, b):
        return Node(np.swapaxes(self.value, a, b), [(self, lambda g: np.swapaxes(g, a, b))])

    def __getitem__(self, index):
        def back(g):
            full = np.zeros_like(self.value)
            np.add.at(full, index, g)
            return full
        return Node(self.value[index], [(self, back)])

    def sum(self, axis=None, keepdims=False):
        def back(g):
            if axis is not None and not keepdims:
                g = np.expand_dims(g, axis)
            return np.broadcast_to(g, self.value.shape)
        return Node(self.value.sum(axis=axis, keepdims=keepdims), [(self, back)])

    def mean(self, axis):
        return self.sum(axis, keepdims=True) / self.value.shape[axis]

    def map(self, value, derivative):
        """An elementwise function, given by its values and its derivatives here."""
        return Node(value, [(self, lambda g: g * derivative)])


def as_node(x):
    return x if isinstance(x, Node) else Node(x)


def unbroadcast(g, shape):
    """Sums a gradient over the axes along which its operand was repeated."""
    while g.ndim > len(shape):
        g = g.sum(axis=0)
    for axis, extent in enumerate(shape):
        if extent == 1 and g.shape[axis] != 1:
            g = g.sum(axis=axis, keepdims=True)
    return g


def binary(left, right, function, back_left, back_right):
    left, right = as_node(left), as_node(right)
    a, b = left.value, right.value
    return Node(function(a, b), [(left, lambda g: unbroadcast(back_left(g, a, b), a.shape)),
                                 (right, lambda g: unbroadcast(back_right(g, a, b), b.shape))])


def exp(x):
    y = np.exp(x.value)
    return x.map(y, y)


def log(x):
    return x.map(np.log(x.value), 1 / x.value)


def rsqrt(x):
    return x.map(x.value**-0.5, -0.5 * x.value**-1.5)


def gelu(x):
    v = x.value
    phi = 0.5 * (1 + ERF(v / math.sqrt(2)))
    return x.map(v * phi, phi + v * np.exp(-v * v / 2) / math.sqrt(2 * math.pi))


def gelu_tanh(x):
    v, a = x.value, math.sqrt(2 / math.pi)
    t = np.tanh(a * (v + 0.044715 * v**3))
    slope = a * (1 + 3 * 0.044715 * v**2)
    return x.map(0.5 * v * (1 + t), 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * slope)


def silu(x):
    v = x.value
    s = 1 / (1 + np.exp(-v))
    return x.map(v * s, s * (1 + v * (1 - s)))


def relu(x):
    return x.map(np.maximum(x.value, 0), (x.value > 0).astype(np.float64))


def concatenate(nodes, axis):
    ends = np.cumsum([n.value.shape[axis] for n in nodes])
    def back(i):
        def pick(g):
            return np.take(g, range(ends[i] - nodes[i].value.shape[axis], ends[i]), axis=axis)
        return pick
    return Node(np.concatenate([n.value for n in nodes], axis),
                [(n, back(i)) for i, n in enumerate(nodes)])


def backward(root):
    """Sets .grad of every node under `root`, a scalar."""
    order, seen = [], set()
    stack = [(root, False)]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((parent, False) for parent, _ in node.parents)
    for node in order:
        node.grad = np.zeros_like(node.value)
    root.grad = np.ones_like(root.value)
    for node in reversed(order):
        for parent, back in node.parents:
            parent.grad = parent.grad + back(node.grad)
