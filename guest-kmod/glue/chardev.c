/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* /dev/perfctr: a descriptor is bound to one thread's counters, once. */

#include <linux/capability.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched.h>
#include <linux/sched/task.h>
#include <linux/security.h>
#include <linux/uaccess.h>
#include <asm/processor.h>
#include <asm/tsc.h>

#include "perfctr.h"

static int perfctr_paranoid = 2;
module_param_named(paranoid, perfctr_paranoid, int, 0644);
MODULE_PARM_DESC(paranoid,
		 "as perf_event_paranoid: 2 no kernel-mode counts, 3 nothing");

static bool perfctr_is_locked_down(void)
{
	return security_locked_down(LOCKDOWN_PERF);
}

static int perfctr_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return nonseekable_open(inode, file);
}

/* A thread goes on counting; whole CPUs do not. */
static int perfctr_release(struct inode *inode, struct file *file)
{
	struct perfctr_thread *thread = file->private_data;

	if (thread)
		perfctr_thread_put(thread);
	perfctr_whole_close(file);
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
	return err ? ERR_PTR(err) : perfctr_find_task(create.tid);
}

/* A thread's number is the one that it has in its own namespace. */
static long perfctr_create_for(struct file *file, struct task_struct *task)
{
	struct pid_namespace *namespace = ns_of_pid(task_pid(task));
	struct perfctr_thread *thread;
	long err;

	thread = perfctr_thread_alloc(task_pid_nr_ns(task, namespace),
				      task_cred_xxx(task, euid));
	if (!thread)
		return -ENOMEM;
	err = perfctr_thread_link(thread, task, file);
	perfctr_thread_put(thread);
	return err;
}

/* The host may have forbidden the domain meanwhile, or be another one. */
static long perfctr_create(struct file *file, void __user *argument)
{
	struct task_struct *task = perfctr_named(argument);
	long err;

	if (IS_ERR(task))
		return PTR_ERR(task);
	err = perfctr_core_handshake_again(&perfctr_query);
	if (!err)
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
	if (!thread)
		return -ESRCH;
	/* The descriptor takes over the reference. */
	if (!cmpxchg(&file->private_data, NULL, thread))
		return 0;
	perfctr_thread_put(thread);
	return -EEXIST;
}

static long perfctr_control(struct perfctr_thread *thread,
			    void __user *argument)
{
	struct perfctr_control_arg control;
	long err;

	if (copy_from_user(&control, argument, sizeof(control)))
		return -EFAULT;
	err = perfctr_core_may_count(perfctr_paranoid, perfmon_capable(),
				     perfctr_is_locked_down(), &control);
	return err ? err : perfctr_thread_control(thread, &control);
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

static long perfctr_ring(struct perfctr_thread *thread, void __user *argument)
{
	struct perfctr_ring_request request;

	if (copy_from_user(&request, argument, sizeof(request)))
		return -EFAULT;
	return perfctr_ring_begin(thread, &request);
}

static long perfctr_take(struct perfctr_thread *thread, void __user *argument)
{
	u64 taken;

	if (copy_from_user(&taken, argument, sizeof(taken)))
		return -EFAULT;
	return perfctr_ring_take(thread, taken);
}

static long perfctr_cpu_control(struct file *file, void __user *argument)
{
	struct perfctr_cpu_state_arg state;

	if (copy_from_user(&state, argument, sizeof(state)))
		return -EFAULT;
	return perfctr_whole_control(file, &state);
}

static long perfctr_cpu_read(void __user *argument)
{
	struct perfctr_cpu_state_arg state;
	long err;

	if (copy_from_user(&state, argument, sizeof(state)))
		return -EFAULT;
	err = perfctr_core_check_cpu_read(&state);
	if (err)
		return err;
	err = perfctr_whole_read(&state);
	if (err)
		return err;
	return copy_to_user(argument, &state, sizeof(state)) ? -EFAULT : 0;
}

static long perfctr_cpu_ioctl(struct file *file, unsigned int command,
			      void __user *argument)
{
	long err = perfctr_core_may_count_cpus(perfmon_capable(),
					       perfctr_is_locked_down());

	if (err)
		return err;
	switch (command) {
	case PERFCTR_IOC_CPU_CONTROL:
		return perfctr_cpu_control(file, argument);
	case PERFCTR_IOC_CPU_START:
		return perfctr_whole_start(file);
	case PERFCTR_IOC_CPU_STOP:
		return perfctr_whole_stop(file);
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
		return perfctr_thread_go_on(thread);
	case PERFCTR_IOC_RING:
		return perfctr_ring(thread, argument);
	case PERFCTR_IOC_RING_TAKE:
		return perfctr_take(thread, argument);
	default:
		return perfctr_thread_unlink(thread);
	}
}

/* A descriptor that may only be read changes nothing. */
static bool perfctr_is_reading(unsigned int command)
{
	switch (command) {
	case PERFCTR_IOC_CREATE:
	case PERFCTR_IOC_CONTROL:
	case PERFCTR_IOC_RESUME:
	case PERFCTR_IOC_RING:
	case PERFCTR_IOC_RING_TAKE:
	case PERFCTR_IOC_UNLINK:
	case PERFCTR_IOC_CPU_CONTROL:
	case PERFCTR_IOC_CPU_START:
	case PERFCTR_IOC_CPU_STOP:
		return false;
	default:
		return true;
	}
}

static long perfctr_ioctl(struct file *file, unsigned int command,
			  unsigned long address)
{
	void __user *argument = (void __user *)address;

	if (!(file->f_mode & FMODE_WRITE) && !perfctr_is_reading(command))
		return -EBADF;
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
	case PERFCTR_IOC_RING:
	case PERFCTR_IOC_RING_TAKE:
		return perfctr_bound_ioctl(file, command, argument);
	case PERFCTR_IOC_CPU_CONTROL:
	case PERFCTR_IOC_CPU_START:
	case PERFCTR_IOC_CPU_STOP:
	case PERFCTR_IOC_CPU_READ:
		return perfctr_cpu_ioctl(file, command, argument);
	default:
		return -ENOTTY;
	}
}

static const struct file_operations perfctr_fops = {
	.owner = THIS_MODULE,
	.open = perfctr_open,
	.release = perfctr_release,
	.unlocked_ioctl = perfctr_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.mmap = perfctr_mmap,
	.poll = perfctr_poll,
};

/* The administrator's, who may give it to a group: udev/60-perfctr.rules. */
static struct miscdevice perfctr_device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "perfctr",
	.mode = 0600,
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
