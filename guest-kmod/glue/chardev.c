/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* /dev/perfctr: a descriptor is bound to one thread's counters, once. */

#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/uaccess.h>
#include <asm/processor.h>
#include <asm/tsc.h>

#include "perfctr.h"

static int perfctr_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return nonseekable_open(inode, file);
}

/* The thread goes on counting. */
static int perfctr_release(struct inode *inode, struct file *file)
{
	struct perfctr_thread *thread = file->private_data;

	if (thread)
		perfctr_thread_put(thread);
	return 0;
}

static long perfctr_info(void __user *argument)
{
	struct perfctr_info_arg info = {
		.abi_major = PERFCTR_ABI_MAJOR,
		.abi_minor = PERFCTR_ABI_MINOR,
		.vendor = perfctr_query.vendor,
		.version = perfctr_query.version,
		.general = perfctr_query.general,
		.fixed = perfctr_query.fixed,
		.general_width = perfctr_query.general_width,
		.fixed_width = perfctr_query.fixed_width,
		.vcpus = nr_cpu_ids,
		.cpu_signature = cpuid_eax(1),
		.tsc_khz = tsc_khz,
	};

	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

static long perfctr_check_create(void __user *argument)
{
	struct perfctr_create create;

	if (copy_from_user(&create, argument, sizeof(create)))
		return -EFAULT;
	return perfctr_core_check_create(&create, task_pid_vnr(current));
}

/* Binds the descriptor, which takes over the caller's reference. */
static long perfctr_bind(struct file *file, struct perfctr_thread *thread)
{
	if (!cmpxchg(&file->private_data, NULL, thread))
		return 0;
	perfctr_thread_put(thread);
	return -EEXIST;
}

static long perfctr_create(struct file *file, void __user *argument)
{
	struct perfctr_thread *thread;
	long err = perfctr_check_create(argument);

	if (err)
		return err;
	if (perfctr_thread_current())
		return -EEXIST;
	thread = perfctr_thread_create();
	if (!thread)
		return -ENOMEM;
	err = perfctr_bind(file, thread);
	if (!err)
		perfctr_thread_link(thread);
	return err;
}

static long perfctr_open_existing(struct file *file, void __user *argument)
{
	struct perfctr_thread *thread = perfctr_thread_current();
	long err = perfctr_check_create(argument);

	if (err)
		return err;
	if (!thread)
		return -ESRCH;
	return perfctr_bind(file, perfctr_thread_get(thread));
}

static long perfctr_control(struct perfctr_thread *thread,
			    void __user *argument)
{
	struct task_struct *owner = READ_ONCE(thread->task);
	struct perfctr_control_arg control;

	if (!owner)
		return -ESRCH;
	if (owner != current)
		return -EPERM;
	if (copy_from_user(&control, argument, sizeof(control)))
		return -EFAULT;
	return perfctr_thread_control(thread, &control);
}

static long perfctr_go_on(struct perfctr_thread *thread)
{
	struct task_struct *owner = READ_ONCE(thread->task);

	if (!owner)
		return -ESRCH;
	return owner == current ? perfctr_thread_go_on(thread) : -EPERM;
}

static long perfctr_read_sums(struct perfctr_thread *thread,
			      void __user *argument)
{
	struct perfctr_sums sums;
	int err = perfctr_thread_read(thread, &sums);

	if (err)
		return err;
	return copy_to_user(argument, &sums, sizeof(sums)) ? -EFAULT : 0;
}

static long perfctr_read_control(struct perfctr_thread *thread,
				 void __user *argument)
{
	struct perfctr_control_arg control;

	mutex_lock(&thread->lock);
	control = thread->control;
	mutex_unlock(&thread->lock);
	return copy_to_user(argument, &control, sizeof(control)) ? -EFAULT : 0;
}

static long perfctr_unlink(struct perfctr_thread *thread)
{
	struct task_struct *owner = READ_ONCE(thread->task);

	if (!owner)
		return 0;
	if (owner != current)
		return -EPERM;
	perfctr_thread_unlink(thread);
	return 0;
}

static long perfctr_bound_ioctl(struct file *file, unsigned int command,
				void __user *argument)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);

	if (!thread)
		return -EINVAL;
	switch (command) {
	case PERFCTR_IOC_CONTROL:
		return perfctr_control(thread, argument);
	case PERFCTR_IOC_READ:
		return perfctr_read_sums(thread, argument);
	case PERFCTR_IOC_READ_CONTROL:
		return perfctr_read_control(thread, argument);
	case PERFCTR_IOC_RESUME:
		return perfctr_go_on(thread);
	default:
		return perfctr_unlink(thread);
	}
}

static long perfctr_ioctl(struct file *file, unsigned int command,
			  unsigned long address)
{
	void __user *argument = (void __user *)address;

	switch (command) {
	case PERFCTR_IOC_INFO:
		return perfctr_info(argument);
	case PERFCTR_IOC_CREATE:
		return perfctr_create(file, argument);
	case PERFCTR_IOC_OPEN:
		return perfctr_open_existing(file, argument);
	case PERFCTR_IOC_CONTROL:
	case PERFCTR_IOC_READ:
	case PERFCTR_IOC_READ_CONTROL:
	case PERFCTR_IOC_UNLINK:
	case PERFCTR_IOC_RESUME:
		return perfctr_bound_ioctl(file, command, argument);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations perfctr_fops = {
	.owner = THIS_MODULE,
	.open = perfctr_open,
	.release = perfctr_release,
	.unlocked_ioctl = perfctr_ioctl,
	.mmap = perfctr_mmap,
	.llseek = no_llseek,
};

/* Anybody may look at their own threads. */
static struct miscdevice perfctr_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "perfctr",
	.mode = 0644,
	.fops = &perfctr_fops,
};

int perfctr_chardev_init(void)
{
	return misc_register(&perfctr_device);
}

void perfctr_chardev_exit(void)
{
	misc_deregister(&perfctr_device);
}
