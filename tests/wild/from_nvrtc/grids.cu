// Blocks that wait for each other: the grid's barrier of cooperative groups, and barriers of named sizes.
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

// Rounds of x[i] = x[i - 1] + x[i + 1] round a ring, from one buffer to the next.
extern "C" __global__ void rounds(int *x, int *y, int n, int count) {
    cg::grid_group grid = cg::this_grid();
    for (int round = 0; round < count; ++round) {
        for (int i = grid.thread_rank(); i < n; i += grid.size())
            y[i] = x[(i + n - 1) % n] + x[(i + 1) % n];
        grid.sync();
        int *swap = x;
        x = y;
        y = swap;
    }
}

// Tiles of eight lanes, and the group of those that are there.
extern "C" __global__ void tiles(const int *x, int *y) {
    auto tile = cg::tiled_partition<8>(cg::this_thread_block());
    int sum = x[threadIdx.x];
    for (int by = tile.size() / 2; by > 0; by /= 2)
        sum += tile.shfl_xor(sum, by);
    if (x[threadIdx.x] % 3 == 0) {
        cg::coalesced_group there = cg::coalesced_threads();
        sum += 1000 * there.size() + 100000 * there.shfl((int)threadIdx.x, 0);
    }
    y[threadIdx.x] = sum;
}
