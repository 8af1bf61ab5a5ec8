KERNEL forward_1(u16 *Q, u16 *K, u16 *V, u16 *O, float *LSE, char *launch, struct failure *failure) {
  SHARED;
  const int tid = threadIdx.x;
  const Swizzled<u16, 64> q = {(u16 *)(shared + 0), 0};
  const Swizzled<u16, 64> key = {(u16 *)(shared + 8192), 0};
  const Swizzled<u16, 64> value = {(u16 *)(shared + 24576), 0};
  float score[32]; // f32 64x64, Mma(rows=64, columns=64, high=4, wide=1, warps=4)
  float weight[32]; // f16 64x64, Mma(rows=64, columns=64, high=4, wide=1, warps=4)
  float out_v[32]; // f32 64x64, Mma(rows=64, columns=64, high=4, wide=1, warps=4)
  float *const top_v = (float *)(shared + 40960);
  float *const before = (float *)(shared + 41216);
  float *const part = (float *)(shared + 41472);
  float *const total = (float *)(shared + 41728);
  const long block = blockIdx.x;
  const long block_x = block % 2;
  const long block_y = block / 2 % 4;
  const long block_z = block / 8;
  {
    // T.copy(q, Q[bz, by, bx * bM, 0])
    {
      const long i2 = tid % 8;
      #pragma unroll 4
      for (int step1 = 0; step1 < 4; step1++) {
        const long i1 = tid / 8 + step1 * 16;
        cp_async16(q + (i1) * 64 + i2 * 8, Q + (((block_z * 32768) + (block_y * 8192)) + (block_x * 4096)) + (i1) * 64 + i2 * 8, 16);
      }
    }
    // T.clear(out)
    {
      {
        const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
        #pragma unroll
        for (int mi = 0; mi < 1; mi++) {
          #pragma unroll
          for (int ni = 0; ni < 8; ni++) {
            #pragma unroll
            for (int qi = 0; qi < 4; qi++) {
              const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
              out_v[(mi * 8 + ni) * 4 + qi] = (float)0;
            }
          }
        }
      }
    }
    // T.clear(total)
    {
      if (tid < 64) {
        const long i3 = tid;
        *(total + i3) = (float)0;
      }
    }
    // T.fill(top, minus_infinity)
    {
      if (tid < 64) {
        const long i4 = tid;
        *(top_v + i4) = (float)(-__builtin_inf());
      }
    }
    // for k in T.Pipelined(steps, num_stages=stages):
    {
      const long k_start = 0, k_stop = lmin(2, ((((block_x * 64) + 64) + 64 - 1) / 64));
      auto fetch = [&](long k, int slot) {
        if (k >= k_stop) return;
        const Swizzled<u16, 64> key = {(u16 *)(shared + 8192 + slot * 8192), 0};
        const Swizzled<u16, 64> value = {(u16 *)(shared + 24576 + slot * 8192), 0};
        // T.copy(key, K[bz, by // group, k * bN, 0])
        {
          const long i6 = tid % 8;
          #pragma unroll 4
          for (int step2 = 0; step2 < 4; step2++) {
            const long i5 = tid / 8 + step2 * 16;
            cp_async16(key + (i5) * 64 + i6 * 8, K + (((block_z * 16384) + ((block_y / 2) * 8192)) + (k * 4096)) + (i5) * 64 + i6 * 8, 16);
          }
        }
        // T.copy(value, V[bz, by // group, k * bN, 0])
        {
          const long i8 = tid % 8;
          #pragma unroll 4
          for (int step3 = 0; step3 < 4; step3++) {
            const long i7 = tid / 8 + step3 * 16;
            cp_async16(value + (i7) * 64 + i8 * 8, V + (((block_z * 16384) + ((block_y / 2) * 8192)) + (k * 4096)) + (i7) * 64 + i8 * 8, 16);
          }
        }
      };
      for (int ahead = 0; ahead < 1; ahead++) {
        fetch(k_start + ahead * 1, ahead);
        cp_async_commit();
      }
      int slot = 0;
      for (long k = k_start; k < k_stop; k += 1) {
        cp_async_wait<0>();
        __syncthreads();
        fetch(k + 1, (slot + 1) % 2);
        cp_async_commit();
        const Swizzled<u16, 64> key = {(u16 *)(shared + 8192 + slot * 8192), 0};
        const Swizzled<u16, 64> value = {(u16 *)(shared + 24576 + slot * 8192), 0};
        slot = (slot + 1) % 2;
        // T.gemm(q, key, score, transpose_B=True, clear_accum=True)
        {
          {
            const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
            #pragma unroll
            for (int mi = 0; mi < 1; mi++) {
              #pragma unroll
              for (int ni = 0; ni < 8; ni++) {
                #pragma unroll
                for (int qi = 0; qi < 4; qi++) {
                  const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
                  score[(mi * 8 + ni) * 4 + qi] = 0;
                }
              }
            }
          }
          // warps 4 x 1, each 1 x 8 tiles of 16 x 8
          {
            const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16, left = warp % 1 * 64;
            {
              #pragma unroll 2
              for (int ki = 0; ki < 64; ki += 16) {
                u32 xs[4];
                #pragma unroll
                for (int mi = 0; mi < 1; mi++) {
                  ldmatrix_x4(xs + mi * 4, q + (top + mi * 16 + lane % 16) * 64 + ki + lane / 16 * 8);
                }
                #pragma unroll
                for (int ni = 0; ni < 8; ni += 2) {
                  u32 ys[4];
                  ldmatrix_x4(ys, key + (left + ni * 8 + lane % 8 + lane / 16 * 8) * 64 + ki + lane / 8 % 2 * 8);
                  #pragma unroll
                  for (int mi = 0; mi < 1; mi++) {
                    float *const sums = score + (mi * 8 + ni) * 4;
                    mma_f16(sums, xs + mi * 4, ys);
                    mma_f16(sums + 4, xs + mi * 4, ys + 2);
                  }
                }
              }
            }
          }
        }
        // for i, j in T.Parallel(bM, bN):
        {
          const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
          #pragma unroll
          for (int mi = 0; mi < 1; mi++) {
            #pragma unroll
            for (int ni = 0; ni < 8; ni++) {
              #pragma unroll
              for (int qi = 0; qi < 4; qi++) {
                const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
                const long i = row;
                const long j = column;
                score[(mi * 8 + ni) * 4 + qi] = ((((k * 64) + j) <= ((block_x * 64) + i)) ? (score[(mi * 8 + ni) * 4 + qi] * (float)(0.18033688011112042)) : (float)(-__builtin_inf()));
              }
            }
          }
        }
        // T.copy(before, top)
        {
          if (tid < 16) {
            const long i9 = tid;
            copy_row<16>(before + i9 * 4, top_v + i9 * 4, 16);
          }
        }
        // T.reduce_max(score, top, dim=1, clear=False)
        __syncthreads();
        {
          const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
          #pragma unroll
          for (int mi = 0; mi < 1; mi++)
          #pragma unroll
          for (int hi = 0; hi < 2; hi++)
          {
            const long row = top + mi * 16 + hi * 8;
            float acc = -__builtin_inff();
            #pragma unroll
            for (int ni = 0; ni < 8; ni++)
            #pragma unroll
            for (int qi = 0; qi < 2; qi++)
              acc = fmax_(acc, score[(mi * 8 + ni) * 4 + hi * 2 + qi]);
            acc = fmax_(acc, __shfl_xor_sync(~0u, acc, 2));
            acc = fmax_(acc, __shfl_xor_sync(~0u, acc, 1));
            if (lane % 4 == 0) {
              acc = fmax_(acc, (*(top_v + row)));
              *(top_v + row) = acc;
            }
          }
        }
        // for i, j in T.Parallel(bM, bN):
        __syncthreads();
        {
          const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
          #pragma unroll
          for (int mi = 0; mi < 1; mi++) {
            #pragma unroll
            for (int ni = 0; ni < 8; ni++) {
              #pragma unroll
              for (int qi = 0; qi < 4; qi++) {
                const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
                const long i_2 = row;
                const long j_2 = column;
                score[(mi * 8 + ni) * 4 + qi] = exp2_f((score[(mi * 8 + ni) * 4 + qi] - (*(top_v + i_2))));
              }
            }
          }
        }
        // T.reduce_sum(score, part, dim=1)
        {
          const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
          #pragma unroll
          for (int mi = 0; mi < 1; mi++)
          #pragma unroll
          for (int hi = 0; hi < 2; hi++)
          {
            const long row = top + mi * 16 + hi * 8;
            float acc = 0;
            #pragma unroll
            for (int ni = 0; ni < 8; ni++)
            #pragma unroll
            for (int qi = 0; qi < 2; qi++)
              acc = acc + score[(mi * 8 + ni) * 4 + hi * 2 + qi];
            acc = acc + __shfl_xor_sync(~0u, acc, 2);
            acc = acc + __shfl_xor_sync(~0u, acc, 1);
            if (lane % 4 == 0) {
              *(part + row) = acc;
            }
          }
        }
        // for i in T.Parallel(bM):
        __syncthreads();
        if (tid < 64) {
          const long i10 = tid;
          const long i_3 = i10;
          *(total + i_3) = (((*(total + i_3)) * exp2_f(((*(before + i_3)) - (*(top_v + i_3))))) + (*(part + i_3)));
        }
        // for i, j in T.Parallel(bM, dim):
        {
          const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
          #pragma unroll
          for (int mi = 0; mi < 1; mi++) {
            #pragma unroll
            for (int ni = 0; ni < 8; ni++) {
              #pragma unroll
              for (int qi = 0; qi < 4; qi++) {
                const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
                const long i_4 = row;
                const long j_3 = column;
                out_v[(mi * 8 + ni) * 4 + qi] = (out_v[(mi * 8 + ni) * 4 + qi] * exp2_f(((*(before + i_4)) - (*(top_v + i_4)))));
              }
            }
          }
        }
        // T.copy(weight, score)
        {
          {
            const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
            #pragma unroll
            for (int mi = 0; mi < 1; mi++) {
              #pragma unroll
              for (int ni = 0; ni < 8; ni++) {
                #pragma unroll
                for (int qi = 0; qi < 4; qi++) {
                  const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
                  weight[(mi * 8 + ni) * 4 + qi] = round1_f16(score[(mi * 8 + ni) * 4 + qi]);
                }
              }
            }
          }
        }
        // T.gemm(weight, value, out)
        {
          // warps 4 x 1, each 1 x 8 tiles of 16 x 8
          {
            const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16, left = warp % 1 * 64;
            {
              #pragma unroll
              for (int ki = 0; ki < 64; ki += 16) {
                u32 xs[4];
                #pragma unroll
                for (int mi = 0; mi < 1; mi++) {
                  const float *const held = weight + (mi * 8 + ki / 8) * 4;
                  xs[mi * 4 + 0] = both_f16(held[0], held[1]);
                  xs[mi * 4 + 1] = both_f16(held[2], held[3]);
                  xs[mi * 4 + 2] = both_f16(held[4], held[5]);
                  xs[mi * 4 + 3] = both_f16(held[6], held[7]);
                }
                #pragma unroll
                for (int ni = 0; ni < 8; ni += 2) {
                  u32 ys[4];
                  ldmatrix_x4_trans(ys, value + (ki + lane % 16) * 64 + left + ni * 8 + lane / 16 * 8);
                  #pragma unroll
                  for (int mi = 0; mi < 1; mi++) {
                    float *const sums = out_v + (mi * 8 + ni) * 4;
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
    // for i, j in T.Parallel(bM, dim):
    __syncthreads();
    {
      const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64 + lane % 4 * 2;
      #pragma unroll
      for (int mi = 0; mi < 1; mi++) {
        #pragma unroll
        for (int ni = 0; ni < 8; ni++) {
          #pragma unroll
          for (int qi = 0; qi < 4; qi++) {
            const long row = top + mi * 16 + qi / 2 * 8, column = left + ni * 8 + qi % 2;
            const long i_5 = row;
            const long j_4 = column;
            out_v[(mi * 8 + ni) * 4 + qi] = (out_v[(mi * 8 + ni) * 4 + qi] / (*(total + i_5)));
          }
        }
      }
    }
    // for i in T.Parallel(bM):
    if (tid < 64) {
      const long i11 = tid;
      const long i_6 = i11;
      *(top_v + i_6) = ((*(top_v + i_6)) + log2_f((*(total + i_6))));
    }
    // T.copy(O[bz, by, bx * bM, 0], out)
    {
      const int lane = tid % 32, warp = tid / 32, top = warp / 1 * 16 + lane / 4, left = warp % 1 * 64;
      {
        #pragma unroll
        for (int mi = 0; mi < 1; mi++) {
          #pragma unroll
          for (int ni = 0; ni < 8; ni += 2) {
            const auto *const sums = out_v + (mi * 8 + ni) * 4;
            u32 words[] = {both_f16(sums[0], sums[1]), both_f16(sums[4], sums[5]), both_f16(sums[2], sums[3]), both_f16(sums[6], sums[7])};
            exchange_quads(words);
            const long row = top + mi * 16 + lane % 4 / 2 * 8, column = left + ni * 8 + lane % 2 * 8;
            store_words<16>(O + (((block_z * 32768) + (block_y * 8192)) + (block_x * 4096)) + (row) * 64 + column, words, 16);
          }
        }
      }
    }
    // T.copy(LSE[bz, by, bx * bM], top)
    __syncthreads();
    {
      if (tid < 16) {
        const long i12 = tid;
        copy_row<16>(LSE + (((block_z * 512) + (block_y * 128)) + (block_x * 64)) + i12 * 4, top_v + i12 * 4, 16);
      }
    }
  }
}
