/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Makes hypercalls of perfctr's in a guest of KVM, which serves its kernel only,
 * with an argument wherever a program wants it: /dev/perfctr-call.
 */

#include <linux/fs.h>
#include <linux/ioctl.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/uaccess.h>
#include <asm/kvm_para.h>
#include <asm/smap.h>

#include "perfctr_abi.h"

struct call {
	__u64 address;
	__u32 op;
	__u32 length;
};

static long call_ioctl(struct file *unused, unsigned int number,
		       unsigned long argument)
{
	struct call call;
	long answer;

	if (number != _IOW('C', 1, struct call))
		return -ENOTTY;
	if (copy_from_user(&call, (void __user *)argument, sizeof(call)))
		return -EFAULT;
	/*
	 * The hypervisor reads and writes the program's memory as this code
	 * does.
	 */
	stac();
	answer = kvm_hypercall3(PERFCTR_KVM_HYPERCALL_NUMBER, call.op,
				call.address, call.length);
	clac();
	return answer;
}

static const struct file_operations call_operations = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = call_ioctl,
};

static struct miscdevice call_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "perfctr-call",
	.fops = &call_operations,
	.mode = 0600,
};

module_misc_device(call_device);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("hypercalls of perfctr's for a program");
