/* SPDX-License-Identifier: Apache-2.0
 *
 * Machines that are known by name, in figures that their makers and users have published. Nobody
 * of this project has measured them: a file of dt_machine_read() is better. */
#include <stddef.h>

#include "planner/machine.h"

#define NCCL "NCCL, src/graph/tuning.cc: ring, simple protocol, "
#define OF_MEGATRON_A100 \
    "arXiv 2205.05198, abstract: 54.2 % of peak, 530 B on 2240 GPUs, communication included"
#define OF_MEGATRON_H100 "Megatron-LM README: up to 47 % of peak on H100, communication included"

/* clang-format off */
static const dt_machine machines[] = {
    { "a100", true, 1, 8, .figure = {
        [DT_FIGURE_DEVICE_BYTES]      = { 80e9,    "NVIDIA A100 data sheet: 80 GB" },
        [DT_FIGURE_HOST_BYTES]        = { 2e12,    "NVIDIA DGX A100 data sheet: 2 TB" },
        [DT_FIGURE_DISK_BYTES]        = { 30e12,   "NVIDIA DGX A100 data sheet: 30 TB, 8 x 3.84 TB NVMe" },
        [DT_FIGURE_MEMORY_BANDWIDTH]  = { 2039e9,  "NVIDIA A100 data sheet: 2039 GB/s" },
        [DT_FIGURE_FLOPS_F32]         = { 19.5e12, "NVIDIA A100 data sheet: FP32 19.5 TFLOPS" },
        [DT_FIGURE_FLOPS_BF16]        = { 312e12,  "NVIDIA A100 data sheet: BF16 312 TFLOPS" },
        [DT_FIGURE_FLOPS_F16]         = { 312e12,  "NVIDIA A100 data sheet: FP16 312 TFLOPS" },
        [DT_FIGURE_EFFICIENCY]        = { 0.542,   OF_MEGATRON_A100 },
        [DT_FIGURE_INSIDE_LATENCY]    = { 3.4e-6,  NCCL "NVLink 3.4 us" },
        [DT_FIGURE_INSIDE_BANDWIDTH]  = { 300e9,   "NVIDIA A100 data sheet: NVLink 600 GB/s, both ways" },
        [DT_FIGURE_BETWEEN_LATENCY]   = { 14e-6,   NCCL "network 14 us" },
        [DT_FIGURE_BETWEEN_BANDWIDTH] = { 200e9,   "NVIDIA DGX A100 data sheet: 8 x 200 Gb/s InfiniBand" },
        [DT_FIGURE_HOST_BANDWIDTH]    = { 32e9,    "PCIe 4.0 x16: 64 GB/s, both ways" },
        [DT_FIGURE_DISK_BANDWIDTH]    = { 25e9,    "NVIDIA DGX A100: 8 NVMe drives, 25 GB/s read together" } } },
    { "h100", true, 1, 8, .figure = {
        [DT_FIGURE_DEVICE_BYTES]      = { 80e9,    "NVIDIA H100 data sheet, SXM: 80 GB" },
        [DT_FIGURE_HOST_BYTES]        = { 2e12,    "NVIDIA DGX H100 data sheet: 2 TB" },
        [DT_FIGURE_DISK_BYTES]        = { 30e12,   "NVIDIA DGX H100 data sheet: 30 TB, 8 x 3.84 TB NVMe" },
        [DT_FIGURE_MEMORY_BANDWIDTH]  = { 3350e9,  "NVIDIA H100 data sheet, SXM: 3.35 TB/s" },
        [DT_FIGURE_FLOPS_F32]         = { 67e12,   "NVIDIA H100 data sheet, SXM: FP32 67 TFLOPS" },
        [DT_FIGURE_FLOPS_BF16]        = { 989e12,  "NVIDIA H100 data sheet, SXM: BF16 1979 TFLOPS with sparsity, half without" },
        [DT_FIGURE_FLOPS_F16]         = { 989e12,  "NVIDIA H100 data sheet, SXM: FP16 1979 TFLOPS with sparsity, half without" },
        [DT_FIGURE_EFFICIENCY]        = { 0.47,    OF_MEGATRON_H100 },
        [DT_FIGURE_INSIDE_LATENCY]    = { 3.4e-6,  NCCL "NVLink 3.4 us" },
        [DT_FIGURE_INSIDE_BANDWIDTH]  = { 450e9,   "NVIDIA H100 data sheet, SXM: NVLink 900 GB/s, both ways" },
        [DT_FIGURE_BETWEEN_LATENCY]   = { 14e-6,   NCCL "network 14 us" },
        [DT_FIGURE_BETWEEN_BANDWIDTH] = { 400e9,   "NVIDIA DGX H100 data sheet: 8 x 400 Gb/s InfiniBand" },
        [DT_FIGURE_HOST_BANDWIDTH]    = { 64e9,    "PCIe 5.0 x16: 128 GB/s, both ways" },
        [DT_FIGURE_DISK_BANDWIDTH]    = { 25e9,    "assumed: as those of NVIDIA DGX A100" } } },
    { "pcie", true, 1, 8, .figure = {
        [DT_FIGURE_DEVICE_BYTES]      = { 80e9,    "NVIDIA A100 data sheet, PCIe: 80 GB" },
        [DT_FIGURE_HOST_BYTES]        = { 1e12,    "assumed: 16 modules of 64 GB" },
        [DT_FIGURE_DISK_BYTES]        = { 8e12,    "assumed: two NVMe drives of 4 TB" },
        [DT_FIGURE_MEMORY_BANDWIDTH]  = { 1935e9,  "NVIDIA A100 data sheet, PCIe: 1935 GB/s" },
        [DT_FIGURE_FLOPS_F32]         = { 19.5e12, "NVIDIA A100 data sheet: FP32 19.5 TFLOPS" },
        [DT_FIGURE_FLOPS_BF16]        = { 312e12,  "NVIDIA A100 data sheet: BF16 312 TFLOPS" },
        [DT_FIGURE_FLOPS_F16]         = { 312e12,  "NVIDIA A100 data sheet: FP16 312 TFLOPS" },
        [DT_FIGURE_EFFICIENCY]        = { 0.542,   OF_MEGATRON_A100 },
        [DT_FIGURE_INSIDE_LATENCY]    = { 5.7e-6,  NCCL "PCI 5.7 us" },
        [DT_FIGURE_INSIDE_BANDWIDTH]  = { 32e9,    "NVIDIA A100 data sheet, PCIe 4.0: 64 GB/s, both ways" },
        [DT_FIGURE_BETWEEN_LATENCY]   = { 14e-6,   NCCL "network 14 us" },
        [DT_FIGURE_BETWEEN_BANDWIDTH] = { 25e9,    "assumed: one adapter of 200 Gb/s" },
        [DT_FIGURE_HOST_BANDWIDTH]    = { 32e9,    "NVIDIA A100 data sheet, PCIe 4.0: 64 GB/s, both ways" },
        [DT_FIGURE_DISK_BANDWIDTH]    = { 12e9,    "assumed: two NVMe drives of 6 GB/s" } } },
    { "ethernet", true, 4, 8, .figure = {
        [DT_FIGURE_DEVICE_BYTES]      = { 40e9,    "NVIDIA A100 data sheet, PCIe: 40 GB" },
        [DT_FIGURE_HOST_BYTES]        = { 1e12,    "assumed: 16 modules of 64 GB" },
        [DT_FIGURE_DISK_BYTES]        = { 8e12,    "assumed: two NVMe drives of 4 TB" },
        [DT_FIGURE_MEMORY_BANDWIDTH]  = { 1555e9,  "NVIDIA A100 data sheet, PCIe 40 GB: 1555 GB/s" },
        [DT_FIGURE_FLOPS_F32]         = { 19.5e12, "NVIDIA A100 data sheet: FP32 19.5 TFLOPS" },
        [DT_FIGURE_FLOPS_BF16]        = { 312e12,  "NVIDIA A100 data sheet: BF16 312 TFLOPS" },
        [DT_FIGURE_FLOPS_F16]         = { 312e12,  "NVIDIA A100 data sheet: FP16 312 TFLOPS" },
        [DT_FIGURE_EFFICIENCY]        = { 0.542,   OF_MEGATRON_A100 },
        [DT_FIGURE_INSIDE_LATENCY]    = { 5.7e-6,  NCCL "PCI 5.7 us" },
        [DT_FIGURE_INSIDE_BANDWIDTH]  = { 32e9,    "NVIDIA A100 data sheet, PCIe 4.0: 64 GB/s, both ways" },
        [DT_FIGURE_BETWEEN_LATENCY]   = { 50e-6,   "assumed: TCP, some 50 us" },
        [DT_FIGURE_BETWEEN_BANDWIDTH] = { 3.125e9, "assumed: one adapter of 25 Gb/s" },
        [DT_FIGURE_HOST_BANDWIDTH]    = { 32e9,    "NVIDIA A100 data sheet, PCIe 4.0: 64 GB/s, both ways" },
        [DT_FIGURE_DISK_BANDWIDTH]    = { 12e9,    "assumed: two NVMe drives of 6 GB/s" } } },
};
/* clang-format on */

const dt_machine *dt_machine_at(int i)
{
    return i >= 0 && (size_t)i < sizeof machines / sizeof machines[0] ? &machines[i] : NULL;
}
