"""The kernels in Triton of which make.py makes the .ptx files beside it, in a file of their own: Triton reads it."""

# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def softmax_rows(x, y, columns, stride, BLOCK: tl.constexpr):
    """One row a program: y = softmax(x)."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    power = tl.exp(value - tl.max(value, 0))
    tl.store(y + row * stride + at, power / tl.sum(power, 0), mask=at < columns)


@triton.jit
def softmax_turned(x, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """One tile a program, of halves: y is softmax(x) over the columns, transposed."""
    tile = tl.program_id(0)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    value = tl.load(x + tile * ROWS * COLUMNS + row[:, None] * COLUMNS + column[None, :]).to(tl.float32)
    power = tl.exp(value - tl.max(value, 1)[:, None])
    result = (power / tl.sum(power, 1)[:, None]).to(tl.float16)
    tl.store(y + tile * ROWS * COLUMNS + column[:, None] * ROWS + row[None, :], tl.trans(result))


@triton.jit
def layer_norm_forward(x, y, w, b, mean, rstd, columns, eps, BLOCK: tl.constexpr):
    """One row a program, loops over blocks of columns; divisions and roots are rounded to nearest."""
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += tl.load(x + row * columns + at, mask=at < columns, other=0.0)
    middle = tl.div_rn(tl.sum(total, 0), columns.to(tl.float32))
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + at, mask=at < columns, other=0.0)
        distance = tl.where(at < columns, value - middle, 0.0)
        squares += distance * distance
    scale = tl.div_rn(1.0, tl.sqrt_rn(tl.div_rn(tl.sum(squares, 0), columns.to(tl.float32)) + eps))
    tl.store(mean + row, middle)
    tl.store(rstd + row, scale)
    for start in range(0, columns, BLOCK):
        at = start + tl.arange(0, BLOCK)
        mask = at < columns
        value = tl.load(x + row * columns + at, mask=mask, other=0.0)
        weight, bias = tl.load(w + at, mask=mask), tl.load(b + at, mask=mask)
        tl.store(y + row * columns + at, (value - middle) * scale * weight + bias, mask=mask)


@triton.jit
def layer_norm_backward(dx, dy, x, w, mean, rstd, dw, db, rows, columns, BLOCK: tl.constexpr):
    """Every so many rows a program: dx, and this program's part of dw and db, without atomics."""
    part, parts = tl.program_id(0), tl.num_programs(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    weight = tl.load(w + at, mask=mask, other=0.0)
    sum_w, sum_b = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    for row in range(part, rows, parts):
        value = tl.load(x + row * columns + at, mask=mask, other=0.0)
        grad = tl.load(dy + row * columns + at, mask=mask, other=0.0)
        scale = tl.load(rstd + row)
        normal = tl.where(mask, (value - tl.load(mean + row)) * scale, 0.0)
        product = weight * grad
        one = tl.div_rn(tl.sum(normal * product, 0), columns.to(tl.float32))
        two = tl.div_rn(tl.sum(product, 0), columns.to(tl.float32))
        tl.store(dx + row * columns + at, (product - (normal * one + two)) * scale, mask=mask)
        sum_w += grad * normal
        sum_b += grad
    tl.store(dw + part * columns + at, sum_w, mask=mask)
    tl.store(db + part * columns + at, sum_b, mask=mask)


@triton.jit
def layer_norm_atomic(dy, x, mean, rstd, dw, columns, BLOCK: tl.constexpr):
    """dw by atomics, one row a program: its bits depend on the order."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    value = tl.load(x + row * columns + at, mask=mask, other=0.0)
    grad = tl.load(dy + row * columns + at, mask=mask, other=0.0)
    tl.atomic_add(dw + at, grad * (value - tl.load(mean + row)) * tl.load(rstd + row), mask=mask)


@triton.jit
def matmul(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SUM: tl.constexpr):
    """c = a @ b, all row-major; K is a multiple of BK. The sum is of type SUM."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    column = tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    a_at = a + row[:, None] * K + depth[None, :]
    b_at = b + depth[:, None] * N + column[None, :]
    total = tl.zeros((BM, BN), SUM)
    for _ in range(0, K, BK):
        left = tl.load(a_at, mask=row[:, None] < M, other=0)
        right = tl.load(b_at, mask=column[None, :] < N, other=0)
        total = tl.dot(left, right, total, out_dtype=SUM)
        a_at += BK
        b_at += BK * N
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(c + row[:, None] * N + column[None, :], total.to(c.dtype.element_ty), mask=inside)


@triton.jit
def attention_forward(q, k, v, o, lse, scale, length, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """Causal flash attention. Arrays are (heads, length, D), lse is (heads, length) in base 2."""
    head, first = tl.program_id(1), tl.program_id(0) * BM
    base = head * length * D
    row, column, d = first + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, D)
    query = tl.load(q + base + row[:, None] * D + d[None, :])
    most = tl.full([BM], -float("inf"), tl.float32)
    weight = tl.zeros([BM], tl.float32)
    total = tl.zeros([BM, D], tl.float32)
    for start in range(0, first + BM, BN):
        key = tl.load(k + base + (start + column)[None, :] * D + d[:, None])
        score = tl.dot(query, key) * (scale * 1.44269504)
        score = tl.where(row[:, None] >= (start + column)[None, :], score, -float("inf"))
        new = tl.maximum(most, tl.max(score, 1))
        p = tl.exp2(score - new[:, None])
        fade = tl.exp2(most - new)
        weight = weight * fade + tl.sum(p, 1)
        value = tl.load(v + base + (start + column)[:, None] * D + d[None, :])
        total = tl.dot(p.to(value.dtype), value, total * fade[:, None])
        most = new
    tl.store(o + base + row[:, None] * D + d[None, :], (total / weight[:, None]).to(o.dtype.element_ty))
    tl.store(lse + head * length + row, most + tl.log2(weight))


@triton.jit
def attention_delta(o, do, delta, length, BM: tl.constexpr, D: tl.constexpr):
    """The row sums of o * do."""
    head = tl.program_id(1)
    row, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    at = head * length * D + row[:, None] * D + d[None, :]
    product = tl.load(o + at).to(tl.float32) * tl.load(do + at).to(tl.float32)
    tl.store(delta + head * length + row, tl.sum(product, 1))


@triton.jit
def attention_backward_kv(
    q, k, v, do, lse, delta, dk, dv, scale, length, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """The gradients of BN keys and values, over the blocks of queries that see them."""
    head, first = tl.program_id(1), tl.program_id(0) * BN
    base = head * length * D
    column, d = first + tl.arange(0, BN), tl.arange(0, D)
    key = tl.load(k + base + column[:, None] * D + d[None, :])
    value = tl.load(v + base + column[:, None] * D + d[None, :])
    grad_k, grad_v = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    for start in range(first // BM * BM, length, BM):
        row = start + tl.arange(0, BM)
        query = tl.load(q + base + row[:, None] * D + d[None, :])
        score = tl.dot(key, tl.trans(query)) * (scale * 1.44269504)
        p = tl.exp2(score - tl.load(lse + head * length + row)[None, :])
        p = tl.where(row[None, :] >= column[:, None], p, 0.0)
        grad = tl.load(do + base + row[:, None] * D + d[None, :])
        grad_v = tl.dot(p.to(grad.dtype), grad, grad_v)
        grad_p = tl.dot(value, tl.trans(grad))
        grad_s = p * (grad_p - tl.load(delta + head * length + row)[None, :])
        grad_k = tl.dot(grad_s.to(query.dtype), query, grad_k)
    at = base + column[:, None] * D + d[None, :]
    tl.store(dk + at, (grad_k * scale).to(dk.dtype.element_ty))
    tl.store(dv + at, grad_v.to(dv.dtype.element_ty))


@triton.jit
def attention_backward_q(
    q, k, v, do, lse, delta, dq, scale, length, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr
):
    """The gradients of BM queries, over the blocks of keys that they see."""
    head, first = tl.program_id(1), tl.program_id(0) * BM
    base = head * length * D
    row, d = first + tl.arange(0, BM), tl.arange(0, D)
    query = tl.load(q + base + row[:, None] * D + d[None, :])
    grad = tl.load(do + base + row[:, None] * D + d[None, :])
    level, part = tl.load(lse + head * length + row), tl.load(delta + head * length + row)
    grad_q = tl.zeros([BM, D], tl.float32)
    for start in range(0, first + BM, BN):
        column = start + tl.arange(0, BN)
        key = tl.load(k + base + column[None, :] * D + d[:, None])
        value = tl.load(v + base + column[None, :] * D + d[:, None])
        p = tl.exp2(tl.dot(query, key) * (scale * 1.44269504) - level[:, None])
        p = tl.where(row[:, None] >= column[None, :], p, 0.0)
        grad_s = p * (tl.dot(grad, value) - part[:, None])
        grad_q = tl.dot(grad_s.to(key.dtype), tl.trans(key), grad_q)
    tl.store(dq + base + row[:, None] * D + d[None, :], (grad_q * scale).to(dq.dtype.element_ty))
