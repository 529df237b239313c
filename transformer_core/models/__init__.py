"""The Transformer of "Attention Is All You Need" (2017), part by part, and the recurrent and convolutional models before it.

Shape letters, the same in every docstring: `B` sentences in the batch, `S` source positions, `T` target positions, `K` beam width,
`H` heads, `D` d_model, `F` d_ff, `V` vocabulary, `N` layers. `d_k` and `d_v` are the sizes of one head's keys and values.
"""
