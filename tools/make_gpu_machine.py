#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tests/mesh/machines/eight_gpus.xml: two sockets and eight GPUs, as hwloc records them.

hwloc imagines cores, caches and NUMA nodes, but no PCI devices. So lstopo writes an imagined
machine of two sockets with two NUMA nodes each, and the devices are added here, in the form that
hwloc 2 writes for a server of this kind: near each NUMA node two GPUs beside an InfiniBand adapter,
and near the first what is no GPU to compute on, the graphics of the management controller and a
disk. The last GPU has no driver, so the system names no device for it.

Run, from the repository root (needs lstopo of hwloc 2):

    python3 tools/make_gpu_machine.py
"""

import subprocess
import xml.etree.ElementTree as ET

MACHINE = "pack:2 l3:2(size=50331648) [numa(memory=137438953472)] core:4 pu:1"
PATH = "tests/mesh/machines/eight_gpus.xml"
GPU, COPROC, BLOCK, OPENFABRICS = "1", "5", "0", "3"  # osdev_type of hwloc 2


class Devices:
    """Adds objects and numbers them behind those that lstopo has numbered."""

    def __init__(self, root):
        self.number = max(int(o.get("gp_index")) for o in root.iter("object"))

    def add(self, parent, **attributes):
        self.number += 1
        return ET.SubElement(parent, "object", gp_index=str(self.number), **attributes)

    def pci(self, parent, bus, kind, vendor, device):
        o = self.add(parent, type="PCIDev", pci_busid=f"0000:{bus:02x}:00.0",
                     pci_type=kind, pci_link_speed="63.015385")
        ET.SubElement(o, "info", name="PCIVendor", value=vendor)
        ET.SubElement(o, "info", name="PCIDevice", value=device)
        return o

    def os(self, parent, name, kind, subtype=None):
        more = {"subtype": subtype} if subtype else {}
        self.add(parent, type="OSDev", name=name, osdev_type=kind, **more)

    def host_bridge(self, parent, first, last):
        return self.add(parent, type="Bridge", bridge_type="0-1", depth="0",
                        bridge_pci=f"0000:[{first:02x}-{last:02x}]")

    def port(self, parent, at, below):
        return self.add(parent, type="Bridge", bridge_type="1-1", depth="1",
                        bridge_pci=f"0000:[{below:02x}-{below:02x}]", pci_busid=at,
                        pci_type="0604 [1000:c030] [1000:100b] b0", pci_link_speed="63.015385")


def add_gpus(devices, near, node):
    first = 0x18 + 0x20 * node
    bridge = devices.host_bridge(near, first - 1, first + 0x1f - 1)
    for k in range(2):
        n = 2 * node + k
        port = devices.port(bridge, f"0000:{first - 1:02x}:{k:02x}.0", first + k)
        gpu = devices.pci(port, first + k, "0302 [10de:2330] [10de:16c1] a1", "NVIDIA Corporation",
                          "GH100 [H100 SXM5 80GB]")
        if n < 7:
            devices.os(gpu, f"cuda{n}", COPROC, "CUDA")
            devices.os(gpu, f"nvml{n}", GPU, "NVML")
    port = devices.port(bridge, f"0000:{first - 1:02x}:02.0", first + 2)
    adapter = devices.pci(port, first + 2, "0207 [15b3:1021] [15b3:0041] 00",
                          "Mellanox Technologies", "MT2910 Family [ConnectX-7]")
    devices.os(adapter, f"mlx5_{node}", OPENFABRICS)


def add_service(devices, near):
    bridge = devices.host_bridge(near, 0x02, 0x05)
    port = devices.port(bridge, "0000:02:00.0", 0x03)
    screen = devices.pci(port, 0x03, "0300 [1a03:2000] [1a03:2000] 52", "ASPEED Technology, Inc.",
                         "ASPEED Graphics Family")
    devices.os(screen, "card0", GPU)
    port = devices.port(bridge, "0000:02:01.0", 0x04)
    disk = devices.pci(port, 0x04, "0108 [144d:a80a] [144d:aa8b] 00", "Samsung Electronics Co Ltd",
                       "NVMe SSD Controller PM9A3")
    devices.os(disk, "nvme0n1", BLOCK, "Disk")


def main():
    text = subprocess.run(["lstopo-no-graphics", "--input", MACHINE, "--of", "xml"], check=True,
                          capture_output=True, text=True).stdout
    root = ET.fromstring(text)
    devices = Devices(root)
    near = [o for o in root.iter("object") if o.get("type") == "L3Cache"]
    add_service(devices, near[0])
    for node, o in enumerate(near):
        add_gpus(devices, o, node)
    ET.indent(root)
    with open(PATH, "w", encoding="utf-8") as f:
        f.write('<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE topology SYSTEM "hwloc2.dtd">\n')
        f.write(ET.tostring(root, encoding="unicode") + "\n")


if __name__ == "__main__":
    main()
