/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* /dev/perfctr: a descriptor is bound to one thread's counters, once. */

#include <linux/capability.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
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
		.features = PERFCTR_MODULE_FEATURES,
		.caps = perfctr_query.caps,
		.vcpus = nr_cpu_ids,
		.cpu_signature = cpuid_eax(1),
		.tsc_khz = tsc_khz,
	};

	return copy_to_user(argument, &info, sizeof(info)) ? -EFAULT : 0;
}

/* The thread that the argument names, with a reference. */
static struct task_struct *perfctr_named(void __user *argument)
{
	struct perfctr_create create;
	int err;

	if (copy_from_user(&create, argument, sizeof(create)))
		return ERR_PTR(-EFAULT);
	err = perfctr_core_check_create(&create);
	if (err)
		return ERR_PTR(err);
	if (create.tid == 0 || create.tid == task_pid_vnr(current))
		return get_task_struct(current);
	return perfctr_remote_task(create.tid);
}

/* Binds the descriptor, which takes over the caller's reference. */
static long perfctr_bind(struct file *file, struct perfctr_thread *thread)
{
	if (!cmpxchg(&file->private_data, NULL, thread))
		return 0;
	perfctr_thread_put(thread);
	return -EEXIST;
}

/* Claimed, with the caller's reference. */
static struct perfctr_thread *perfctr_claim(struct task_struct *task)
{
	struct perfctr_thread *thread = perfctr_thread_alloc(task_pid_nr(task));
	int err;

	if (!thread)
		return ERR_PTR(-ENOMEM);
	err = perfctr_thread_claim(thread, task);
	if (!err)
		return thread;
	perfctr_thread_put(thread);
	return ERR_PTR(err);
}

/* By the thread itself at once; another thread does it when it goes on. */
static int perfctr_link(struct perfctr_thread *thread, struct task_struct *task)
{
	if (task != current)
		return perfctr_remote_link(thread, task);
	perfctr_thread_link(thread);
	return 0;
}

static long perfctr_create_for(struct file *file, struct task_struct *task)
{
	struct perfctr_thread *thread = perfctr_claim(task);
	long err;

	if (IS_ERR(thread))
		return PTR_ERR(thread);
	perfctr_thread_get(thread);
	err = perfctr_bind(file, thread);
	if (!err)
		err = perfctr_link(thread, task);
	if (err)
		perfctr_thread_disclaim(thread);
	perfctr_thread_put(thread);
	return err;
}

static long perfctr_create(struct file *file, void __user *argument)
{
	struct task_struct *task = perfctr_named(argument);
	long err;

	if (IS_ERR(task))
		return PTR_ERR(task);
	err = perfctr_create_for(file, task);
	put_task_struct(task);
	return err;
}

static long perfctr_open_existing(struct file *file, void __user *argument)
{
	struct task_struct *task = perfctr_named(argument);
	struct perfctr_thread *thread;

	if (IS_ERR(task))
		return PTR_ERR(task);
	thread = perfctr_thread_find(task);
	put_task_struct(task);
	return thread ? perfctr_bind(file, thread) : -ESRCH;
}

static long perfctr_control(struct perfctr_thread *thread,
			    void __user *argument)
{
	struct perfctr_control_arg control;
	struct task_struct *owner;
	long err;

	if (copy_from_user(&control, argument, sizeof(control)))
		return -EFAULT;
	owner = perfctr_thread_owner(thread);
	if (!owner)
		return -ESRCH;
	if (owner == current)
		err = perfctr_thread_control(thread, &control);
	else
		err = perfctr_remote_control(thread, owner, &control);
	put_task_struct(owner);
	return err;
}

static long perfctr_go_on(struct perfctr_thread *thread)
{
	struct task_struct *owner = perfctr_thread_owner(thread);
	long err;

	if (!owner)
		return -ESRCH;
	if (owner == current)
		err = perfctr_thread_go_on(thread);
	else
		err = perfctr_remote_go_on(thread, owner);
	put_task_struct(owner);
	return err;
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
	control = thread->asked & PERFCTR_ASKED_CONTROL ?
			  thread->asked_control :
			  thread->control;
	mutex_unlock(&thread->lock);
	return copy_to_user(argument, &control, sizeof(control)) ? -EFAULT : 0;
}

static long perfctr_unlink(struct perfctr_thread *thread)
{
	struct task_struct *owner = perfctr_thread_owner(thread);
	long err = 0;

	if (!owner)
		return 0;
	if (owner == current)
		perfctr_thread_unlink(thread);
	else
		err = perfctr_remote_unlink(thread, owner);
	put_task_struct(owner);
	return err;
}

static long perfctr_cpu_control(void __user *argument)
{
	struct perfctr_cpu_state_arg state;

	if (copy_from_user(&state, argument, sizeof(state)))
		return -EFAULT;
	return perfctr_global_control(&state);
}

static long perfctr_cpu_read(void __user *argument)
{
	struct perfctr_cpu_state_arg state;
	long err;

	if (copy_from_user(&state, argument, sizeof(state)))
		return -EFAULT;
	err = perfctr_global_read(&state);
	if (err)
		return err;
	return copy_to_user(argument, &state, sizeof(state)) ? -EFAULT : 0;
}

static long perfctr_cpu_ioctl(unsigned int command, void __user *argument)
{
	if (!perfmon_capable())
		return -EPERM;
	switch (command) {
	case PERFCTR_IOC_CPU_CONTROL:
		return perfctr_cpu_control(argument);
	case PERFCTR_IOC_CPU_START:
		return perfctr_global_start();
	case PERFCTR_IOC_CPU_STOP:
		return perfctr_global_stop();
	default:
		return perfctr_cpu_read(argument);
	}
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
	case PERFCTR_IOC_CPU_CONTROL:
	case PERFCTR_IOC_CPU_START:
	case PERFCTR_IOC_CPU_STOP:
	case PERFCTR_IOC_CPU_READ:
		return perfctr_cpu_ioctl(command, argument);
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
