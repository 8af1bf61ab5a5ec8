KERNEL kernel_v_1(u16 *A, u16 *B, float *C, char *launch, struct failure *failure) {
  SHARED;
  const int tid = threadIdx.x;
  const Swizzled<u16, 32> a = {(u16 *)(shared + 0), 0};
  const Swizzled<u16, 64> b = {(u16 *)(shared + 12288), 0};
  float c[32]; // f32 64x64, Mma(rows=64, columns=64, high=2, wide=2, warps=4)
  const long block = blockIdx.x;
  const long block_x = block % 3;
  const long block_y = block / 3;
  {
    // T.clear(c)
    {
      {
        const int lane = tid % 32, warp = tid / 32, top = warp / 2 * 32 + lane / 4, left = warp % 2 * 32 + lane % 4 * 2;
        #pragma unroll
        for (int mi = 0; mi < 2; mi++) {
          #pragma unroll
          for (int ni = 0; ni < 4; ni++) {
            #pragma unroll
            for (int qi = 0; qi < 4; qi++) {
              const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
              c[(mi * 4 + ni) * 4 + qi] = (float)0;
            }
          }
        }
      }
    }
    // for k in T.Pipelined(T.ceildiv(K, bK), num_stages=stages):
    {
      const long k_start = 0, k_stop = 3;
      auto fetch = [&](long k, int slot) {
        if (k >= k_stop) return;
        const Swizzled<u16, 32> a = {(u16 *)(shared + 0 + slot * 4096), 0};
        const Swizzled<u16, 64> b = {(u16 *)(shared + 12288 + slot * 4096), 0};
        // T.copy(a, A[by * bM, k * bK])
        {
          const long low1 = lmin(lmax(-((block_y * 64)), 0), 64), high1 = lmax(lmin(200 - ((block_y * 64)), 64), low1);
          const long i2 = tid % 4;
          #pragma unroll 2
          for (int step1 = 0; step1 < 2; step1++) {
            const long i1 = tid / 4 + step1 * 32;
            cp_async16(a + (i1) * 32 + i2 * 8, A + ((block_y * 6144) + (k * 32)) + (i1) * 96 + i2 * 8, i1 >= low1 && i1 < high1 ? 16 : 0);
          }
        }
        // T.copy(b, B[k * bK, bx * bN])
        {
          const long low2 = lmin(lmax(-((block_x * 64)), 0), 64), high2 = lmax(lmin(136 - ((block_x * 64)), 64), low2);
          const long i4 = tid % 8;
          #pragma unroll 2
          for (int step2 = 0; step2 < 2; step2++) {
            const long i3 = tid / 8 + step2 * 16;
            cp_async16(b + (i3) * 64 + i4 * 8, B + ((k * 4352) + (block_x * 64)) + (i3) * 136 + i4 * 8, i4 * 8 < high2 ? 16 : 0);
          }
        }
      };
      for (int ahead = 0; ahead < 2; ahead++) {
        fetch(k_start + ahead * 1, ahead);
        cp_async_commit();
      }
      int slot = 0;
      for (long k = k_start; k < k_stop; k += 1) {
        cp_async_wait<1>();
        __syncthreads();
        fetch(k + 2, (slot + 2) % 3);
        cp_async_commit();
        const Swizzled<u16, 32> a = {(u16 *)(shared + 0 + slot * 4096), 0};
        const Swizzled<u16, 64> b = {(u16 *)(shared + 12288 + slot * 4096), 0};
        slot = (slot + 1) % 3;
        // T.gemm(a, b, c)
        {
          // warps 2 x 2, each 2 x 4 tiles of 16 x 8
          {
            const int lane = tid % 32, warp = tid / 32, top = warp / 2 * 32, left = warp % 2 * 32;
            {
              #pragma unroll 2
              for (int ki = 0; ki < 32; ki += 16) {
                u32 xs[8];
                #pragma unroll
                for (int mi = 0; mi < 2; mi++) {
                  ldmatrix_x4(xs + mi * 4, a + (top + mi * 16 + lane % 16) * 32 + ki + lane / 16 * 8);
                }
                #pragma unroll
                for (int ni = 0; ni < 4; ni += 2) {
                  u32 ys[4];
                  ldmatrix_x4_trans(ys, b + (ki + lane % 16) * 64 + left + ni * 8 + lane / 16 * 8);
                  #pragma unroll
                  for (int mi = 0; mi < 2; mi++) {
                    float *const sums = c + (mi * 4 + ni) * 4;
                    mma_f16(sums, xs + mi * 4, ys);
                    mma_f16(sums + 4, xs + mi * 4, ys + 2);
                  }
                }
              }
            }
          }
        }
      }
      cp_async_wait<0>();
    }
    // T.copy(C[by * bM, bx * bN], c)
    {
      const long low3 = lmin(lmax(-((block_y * 64)), 0), 64), high3 = lmax(lmin(200 - ((block_y * 64)), 64), low3);
      const long low4 = lmin(lmax(-((block_x * 64)), 0), 64), high4 = lmax(lmin(136 - ((block_x * 64)), 64), low4);
      const int lane = tid % 32, warp = tid / 32, top = warp / 2 * 32 + lane / 4, left = warp % 2 * 32;
      {
        #pragma unroll
        for (int mi = 0; mi < 2; mi++) {
          #pragma unroll
          for (int ni = 0; ni < 4; ni += 1) {
            const auto *const sums = c + (mi * 4 + ni) * 4;
            u32 words[] = {bits_of(sums[0]), bits_of(sums[1]), bits_of(sums[2]), bits_of(sums[3])};
            exchange_pairs(words);
            const long row = top + mi * 16 + lane % 2 * 8, column = left + ni * 8 + lane % 4 / 2 * 4;
            if (row >= low3 && row < high3 && column < high4) store_words<16>(C + ((block_y * 8704) + (block_x * 64)) + (row) * 136 + column, words, 16);
          }
        }
      }
    }
  }
}
