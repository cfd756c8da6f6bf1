/* SPDX-License-Identifier: Apache-2.0 */
/* The host's program of a stand-in for a BlueField-3: takes the option and prints the words of
 * NVIDIA's doca_pcc (doca-samples, applications/pcc/host/pcc.c), around an algorithm that is
 * registered as on the NIC, and then never called. Of several for a device one is active, the
 * others in standby (doca_pcc.h).
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>
#include "doca_pcc_dev.h"
#include "doca_pcc_dev_algo_access.h"

#define STANDBY_US 100000

extern struct doca_pcc_dev_algo_meta_data about;
extern uint32_t slots_enabled;
void doca_pcc_dev_user_init(uint32_t *disable_event_bitmask);

static volatile sig_atomic_t stop;

static void interrupted(int number)
{
	(void)number;
	stop = 1;
}

static void set_enabled(const char *path)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return;
	fprintf(file, "%.*s, version %u.%u\n", (int)about.algo_desc_size,
		(const char *)(uintptr_t)about.algo_desc_addr, (unsigned)about.algo_major_version,
		(unsigned)about.algo_minor_version);
	fclose(file);
}

int main(int argc, char **argv)
{
	const char *device = argc == 3 && !strcmp(argv[1], "-d") ? argv[2] : "";
	char path[256], lock[256];
	uint32_t disabled = 0;
	int held, active;
	sigset_t none, block;

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s", device);
	if (!*device || access(path, F_OK)) {
		printf("Error: Entered IB device name: %s doesn't exist\n", device);
		return 1;
	}
	snprintf(path, sizeof(path), "/run/bluefield-%s.ppcc", device);
	snprintf(lock, sizeof(lock), "/run/bluefield-%s.lock", device);
	sigemptyset(&none);
	sigemptyset(&block);
	sigaddset(&block, SIGINT);
	sigprocmask(SIG_BLOCK, &block, NULL);
	signal(SIGINT, interrupted);
	printf("Info: Welcome to DOCA Programmable Congestion Control (PCC) application\n"
	       "Info: Starting DOCA PCC\n");
	doca_pcc_dev_user_init(&disabled);
	held = open(lock, O_CREAT | O_RDWR, 0600);
	if (!slots_enabled || held < 0) {
		printf("Error: Failed to start PCC\n");
		return 1;
	}
	active = !flock(held, LOCK_EX | LOCK_NB);
	printf("Info: Press ctrl + C to exit\nInfo: PCC host status %s\nInfo: Waiting on DOCA PCC\n",
	       active ? "Active" : "Standby");
	while (!active && !stop) {
		sigprocmask(SIG_UNBLOCK, &block, NULL);
		usleep(STANDBY_US);
		sigprocmask(SIG_BLOCK, &block, NULL);
		active = !flock(held, LOCK_EX | LOCK_NB);
		if (active)
			printf("Info: PCC host status Active\nInfo: Waiting on DOCA PCC\n");
	}
	if (active)
		set_enabled(path);
	while (!stop)
		sigsuspend(&none);
	if (active)
		unlink(path);
	printf("Info: Finished waiting on DOCA PCC\n");
	return 0;
}
