/* SPDX-License-Identifier: Apache-2.0
 *
 * The GPUs of a machine, and which cores they are near to. */
#include <stdio.h>
#include <string.h>

#include "mesh/topology_internal.h"

/* Classes of PCI devices: their base class in the high byte. */
enum { PCI_BASE_DISPLAY = 0x03, PCI_3D_CONTROLLER = 0x0302, PCI_BASE_ACCELERATOR = 0x12 };

/* A driver offers to compute on it. */
static bool computes(hwloc_obj_t device)
{
    for (hwloc_obj_t o = device->io_first_child; o != NULL; o = o->next_sibling)
        if (o->type == HWLOC_OBJ_OS_DEVICE && o->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC)
            return true;
    return false;
}

/* Servers compute on 3D controllers and accelerators, workstations on what draws as well. Only a
 * driver tells these from the graphics of a management controller. */
static bool is_gpu(hwloc_obj_t device)
{
    const unsigned class_id = device->attr->pcidev.class_id;

    if (class_id == PCI_3D_CONTROLLER || class_id >> 8 == PCI_BASE_ACCELERATOR) return true;
    return class_id >> 8 == PCI_BASE_DISPLAY && computes(device);
}

/* The next GPU behind `device`, or the first one behind NULL. */
static hwloc_obj_t next_gpu(const dt_topology *t, hwloc_obj_t device)
{
    do device = hwloc_get_next_pcidev(t->hw, device);
    while (device != NULL && !is_gpu(device));
    return device;
}

int dt_topology_n_gpus(const dt_topology *t)
{
    int n = 0;

    if (t == NULL) return -1;
    if (t->hw == NULL) return 0;
    for (hwloc_obj_t d = next_gpu(t, NULL); d != NULL; d = next_gpu(t, d)) n++;
    return n;
}

static void name_gpu(hwloc_obj_t device, dt_gpu *out)
{
    const struct hwloc_pcidev_attr_s *pci = &device->attr->pcidev;
    const char *model = hwloc_obj_get_info_by_name(device, "PCIDevice");
    size_t used = 0;

    (void)snprintf(out->bus, sizeof out->bus, "%04x:%02x:%02x.%x", pci->domain & 0xffffu, pci->bus,
                   pci->dev, pci->func & 0xfu);
    if (model != NULL)
        (void)snprintf(out->name, sizeof out->name, "%s", model);
    else
        (void)snprintf(out->name, sizeof out->name, "%04x:%04x", pci->vendor_id, pci->device_id);
    for (hwloc_obj_t o = device->io_first_child; o != NULL; o = o->next_sibling)
        if (o->type == HWLOC_OBJ_OS_DEVICE && o->name != NULL && used < sizeof out->devices)
            used += (size_t)snprintf(out->devices + used, sizeof out->devices - used, "%s%s",
                                     used > 0 ? " " : "", o->name);
}

void dt_topology_gpu(const dt_topology *t, int gpu, dt_gpu *out)
{
    hwloc_obj_t device, near, package, node;

    if (out == NULL) return;
    *out = (dt_gpu){ .package = -1, .node = -1 };
    if (gpu < 0 || gpu >= dt_topology_n_gpus(t)) return;
    device = next_gpu(t, NULL);
    for (int i = 0; i < gpu; i++) device = next_gpu(t, device);
    name_gpu(device, out);
    near = hwloc_get_non_io_ancestor_obj(t->hw, device);
    package = near->type == HWLOC_OBJ_PACKAGE
                  ? near
                  : hwloc_get_ancestor_obj_by_type(t->hw, HWLOC_OBJ_PACKAGE, near);
    if (package == NULL && hwloc_get_nbobjs_by_type(t->hw, HWLOC_OBJ_PACKAGE) == 1)
        package = hwloc_get_obj_by_type(t->hw, HWLOC_OBJ_PACKAGE, 0);
    if (package != NULL) out->package = (int)package->logical_index;
    if (near->nodeset == NULL || hwloc_bitmap_weight(near->nodeset) != 1) return;
    node = hwloc_get_numanode_obj_by_os_index(t->hw, (unsigned)hwloc_bitmap_first(near->nodeset));
    if (node != NULL) out->node = (int)node->logical_index;
}
