/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * The device /dev/perfctr. The core decides by its table
 * (shared-abi/src/requests.rs) whether a request is admitted. This file then
 * carries the request out.
 */

#include <linux/capability.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/sched/task.h>
#include <linux/security.h>
#include <linux/uaccess.h>
#include <asm/tsc.h>

#include "perfctr.h"

static int perfctr_paranoid = 2;
module_param_named(paranoid, perfctr_paranoid, int, 0644);
MODULE_PARM_DESC(paranoid,
		 "as perf_event_paranoid: 2 no kernel-mode counts, 3 nothing");

/*
 * This is held during each request about CPUs, because the core serves one such
 * request at a time.
 */
static DEFINE_MUTEX(perfctr_cpus_lock);

/*
 * The kernel logs each refusal, so the core asks this only where the answer
 * matters. It asks quietly where a negative answer refuses nothing.
 */
bool perfctr_glue_has_capability(int capability, bool is_quiet)
{
	return is_quiet ? ns_capable_noaudit(&init_user_ns, capability) :
			  capable(capability);
}

bool perfctr_glue_is_locked_down(void)
{
	return security_locked_down(LOCKDOWN_PERF);
}

int perfctr_glue_perf_allows_kernel(void)
{
	return perf_allow_kernel();
}

static int perfctr_open(struct inode *inode, struct file *file)
{
	file->private_data = NULL;
	return nonseekable_open(inode, file);
}

/*
 * The descriptor's thread goes on counting, but CPUs that the descriptor has
 * set to count stop. Most descriptors have set none, and need not wait for the
 * requests of others.
 */
static int perfctr_release(struct inode *inode, struct file *file)
{
	struct perfctr_thread *thread = file->private_data;

	if (thread)
		perfctr_thread_put(thread);
	if (!perfctr_core_owns_cpus((unsigned long)file))
		return 0;
	mutex_lock(&perfctr_cpus_lock);
	perfctr_core_close_cpus((unsigned long)file);
	mutex_unlock(&perfctr_cpus_lock);
	return 0;
}

/*
 * The thread is recorded by its number in its own namespace. The handshake is
 * repeated, because the host may have forbidden the domain to count since then,
 * or the guest may execute on another host now.
 */
static int perfctr_create(struct file *file, struct task_struct *task)
{
	struct perfctr_thread *thread;
	int err = perfctr_core_handshake_again();

	if (err)
		return err;
	thread = perfctr_thread_alloc(
		task_pid_nr_ns(task, ns_of_pid(task_pid(task))), task);
	if (IS_ERR(thread))
		return PTR_ERR(thread);
	perfctr_late_init(thread);
	err = perfctr_thread_link(thread, task, file);
	perfctr_thread_put(thread);
	return err;
}

/*
 * Binds the descriptor to counters of the calling thread or of its stopped
 * tracee.
 */
static int perfctr_bind(struct file *file, const struct perfctr_create *create,
			bool is_new)
{
	struct task_struct *task = perfctr_find_task(create->tid);
	int err;

	if (!task)
		return -ESRCH;
	err = is_new ? perfctr_create(file, task) :
		       perfctr_thread_open(file, task);
	put_task_struct(task);
	return err;
}

/* The core has checked that the argument has the size of the request's type. */
static int perfctr_perform(struct file *file, struct perfctr_thread *thread,
			   unsigned int number, void *argument)
{
	int done;

	switch (number) {
	case PERFCTR_IOC_INFO:
		return perfctr_core_info(nr_cpu_ids, cpuid_eax(1), tsc_khz,
					 argument);
	case PERFCTR_IOC_CREATE:
	case PERFCTR_IOC_OPEN:
		return perfctr_bind(file, argument,
				    number == PERFCTR_IOC_CREATE);
	case PERFCTR_IOC_CONTROL:
		mutex_lock(&thread->lock);
		done = perfctr_thread_operate(thread, number, argument);
		mutex_unlock(&thread->lock);
		return done;
	case PERFCTR_IOC_RESUME:
		return perfctr_thread_operate(thread, number, NULL);
	case PERFCTR_IOC_READ:
		return perfctr_thread_read(thread, argument);
	case PERFCTR_IOC_READ_CONTROL:
		mutex_lock(&thread->lock);
		perfctr_core_last_control(perfctr_core_of(thread), argument);
		mutex_unlock(&thread->lock);
		return 0;
	case PERFCTR_IOC_RING:
		return perfctr_ring_begin(thread, argument);
	case PERFCTR_IOC_RING_TAKE:
	case PERFCTR_IOC_INTERRUPTS:
		return perfctr_core_serve_word(perfctr_core_of(thread), number,
					       argument);
	case PERFCTR_IOC_UNLINK:
		return perfctr_thread_unlink(thread);
	case PERFCTR_IOC_CPU_CONTROL:
	case PERFCTR_IOC_CPU_READ:
	case PERFCTR_IOC_CPU_START:
	case PERFCTR_IOC_CPU_STOP:
		mutex_lock(&perfctr_cpus_lock);
		done = perfctr_core_request_of_cpus(number, (unsigned long)file,
						    argument);
		mutex_unlock(&perfctr_cpus_lock);
		return done;
	default:
		return -ENOTTY;
	}
}

/*
 * Reads are frequent. If the compiler knows the number of bytes, the kernel's
 * check of the copy does not have to look up the object that has them.
 */
static unsigned long perfctr_copy_out(void __user *user, const void *argument,
				      u32 bytes)
{
	if (bytes == sizeof(struct perfctr_sums))
		return copy_to_user(user, argument,
				    sizeof(struct perfctr_sums));
	return copy_to_user(user, argument, bytes);
}

static long perfctr_ioctl(struct file *file, unsigned int number,
			  unsigned long address)
{
	struct perfctr_thread *thread = READ_ONCE(file->private_data);
	struct task_struct *task = thread ? READ_ONCE(thread->task) : NULL;
	void __user *user = (void __user *)address;
	u64 argument[PERFCTR_ARGUMENT_WORDS];
	struct perfctr_admitted admitted;
	int done;

	done = perfctr_core_admit(number, file->f_mode & FMODE_WRITE, thread,
				  task, task == current, &admitted);
	if (done)
		return done;
	if (admitted.bytes_in) {
		if (copy_from_user(argument, user, admitted.bytes_in))
			return -EFAULT;
		done = perfctr_core_judge(number, argument, admitted.bytes_in,
					  perfctr_paranoid, nr_cpu_ids);
		if (done)
			return done;
	}
	done = perfctr_perform(file, thread, number, argument);
	if (done >= 0 && admitted.bytes_out &&
	    perfctr_copy_out(user, argument, admitted.bytes_out))
		return -EFAULT;
	return done;
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

/*
 * Only root may open the device. The administrator may give it to a group
 * (udev/60-perfctr.rules).
 */
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
