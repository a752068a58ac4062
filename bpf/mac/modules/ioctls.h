/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The effects of commands of ioctl(2) on the file of their descriptor, for biba, mls and lomac: the
 * kernel asks no other hook about most of them, and carries out many of those that change something
 * through a descriptor that is open to read only.
 *
 * This is the only table of them, and docs/man/usher-mac-levels.7.md lists what is in it. Commands
 * are known by their type and number, the lower 16 bits, so that those of 32-bit programs are the
 * same. Commands that are not named do nothing, except:
 *   - those of a block device change the system: the drivers have hundreds of commands;
 *   - those of btrfs and F2FS change the file: most of theirs do.
 */
#ifndef USHER_MAC_MODULE_IOCTLS_H
#define USHER_MAC_MODULE_IOCTLS_H

#include "kernel_numbers.h"
#include "usher_mac_requests.h"

enum ioctl_effect {
	IOCTL_NOTHING, /* to the file */
	IOCTL_ASKS, /* reads its attributes */
	IOCTL_CHANGES, /* writes it, or its attributes */
	IOCTL_CHANGES_SYSTEM, /* reaches further than the file: what is mounted from it, other
			       * devices, the whole file system */
	IOCTL_TYPES, /* is typed into a terminal, for whoever reads it next */
};

#define IOCTL(type, number) ((type) << 8 | (number))

#define IOCTL_BLOCK 0x12
#define IOCTL_BTRFS 0x94
#define IOCTL_F2FS 0xf5
#define IOCTL_XFS 'X'

/* Commands about the descriptor, whatever it is open to. */
static __always_inline int is_of_descriptor(__u32 command)
{
	switch (command) {
	case IOCTL('T', 0x21): /* FIONBIO */
	case IOCTL('T', 0x50): /* FIONCLEX */
	case IOCTL('T', 0x51): /* FIOCLEX */
	case IOCTL('T', 0x52): /* FIOASYNC */
		return 1;
	}
	return 0;
}

static __always_inline enum ioctl_effect effect_on_block_device(__u32 command)
{
	switch (command) {
	case IOCTL(IOCTL_BLOCK, 94): /* BLKROGET */
	case IOCTL(IOCTL_BLOCK, 96): /* BLKGETSIZE */
	case IOCTL(IOCTL_BLOCK, 99): /* BLKRAGET */
	case IOCTL(IOCTL_BLOCK, 101): /* BLKFRAGET */
	case IOCTL(IOCTL_BLOCK, 103): /* BLKSECTGET */
	case IOCTL(IOCTL_BLOCK, 104): /* BLKSSZGET */
	case IOCTL(IOCTL_BLOCK, 112): /* BLKBSZGET */
	case IOCTL(IOCTL_BLOCK, 114): /* BLKGETSIZE64 */
	case IOCTL(IOCTL_BLOCK, 120): /* BLKIOMIN */
	case IOCTL(IOCTL_BLOCK, 121): /* BLKIOOPT */
	case IOCTL(IOCTL_BLOCK, 122): /* BLKALIGNOFF */
	case IOCTL(IOCTL_BLOCK, 123): /* BLKPBSZGET */
	case IOCTL(IOCTL_BLOCK, 124): /* BLKDISCARDZEROES */
	case IOCTL(IOCTL_BLOCK, 126): /* BLKROTATIONAL */
	case IOCTL(IOCTL_BLOCK, 128): /* BLKGETDISKSEQ */
	case IOCTL(IOCTL_BLOCK, 130): /* BLKREPORTZONE */
	case IOCTL(IOCTL_BLOCK, 132): /* BLKGETZONESZ */
	case IOCTL(IOCTL_BLOCK, 133): /* BLKGETNRZONES */
	case IOCTL(3, 1): /* HDIO_GETGEO */
	case IOCTL(3, 13): /* HDIO_GET_IDENTITY */
	case IOCTL(9, 16): /* RAID_VERSION */
	case IOCTL(9, 17): /* GET_ARRAY_INFO */
	case IOCTL(9, 18): /* GET_DISK_INFO */
	case IOCTL('L', 3): /* LOOP_GET_STATUS */
	case IOCTL('L', 5): /* LOOP_GET_STATUS64 */
	case IOCTL('S', 0x25): /* CDROM_MEDIA_CHANGED */
	case IOCTL('S', 0x26): /* CDROM_DRIVE_STATUS */
	case IOCTL('S', 0x27): /* CDROM_DISC_STATUS */
	case IOCTL('S', 0x31): /* CDROM_GET_CAPABILITY */
	case IOCTL('S', 0x82): /* SCSI_IOCTL_GET_IDLUN */
	case IOCTL('S', 0x86): /* SCSI_IOCTL_GET_BUS_NUMBER */
	case IOCTL(0x22, 0x82): /* SG_GET_VERSION_NUM */
		return IOCTL_ASKS;
	case IOCTL(IOCTL_BLOCK, 119): /* BLKDISCARD */
	case IOCTL(IOCTL_BLOCK, 125): /* BLKSECDISCARD */
	case IOCTL(IOCTL_BLOCK, 127): /* BLKZEROOUT */
		return IOCTL_CHANGES;
	}
	return IOCTL_CHANGES_SYSTEM;
}

static __always_inline enum ioctl_effect effect_of_btrfs(__u32 number)
{
	switch (number) {
	case 8: /* SYNC */
	case 17: /* TREE_SEARCH, and its second form */
	case 18: /* INO_LOOKUP */
	case 20: /* SPACE_INFO */
	case 22: /* WAIT_SYNC */
	case 24: /* START_SYNC */
	case 25: /* SUBVOL_GETFLAGS */
	case 29: /* SCRUB_PROGRESS */
	case 30: /* DEV_INFO */
	case 31: /* FS_INFO */
	case 34: /* BALANCE_PROGRESS */
	case 35: /* INO_PATHS */
	case 36: /* LOGICAL_INO */
	case 38: /* SEND */
	case 49: /* GET_FSLABEL, FS_IOC_GETFSLABEL */
	case 52: /* GET_DEV_STATS */
	case 54: /* FIDEDUPERANGE: the kernel asks about the other files */
	case 57: /* GET_FEATURES */
	case 59: /* LOGICAL_INO_V2 */
	case 60: /* GET_SUBVOL_INFO */
	case 61: /* GET_SUBVOL_ROOTREF */
	case 62: /* INO_LOOKUP_USER */
		return IOCTL_NOTHING;
	}
	/* Snapshots, subvolumes, FICLONE and FICLONERANGE of all file systems, and so on. */
	return IOCTL_CHANGES;
}

static __always_inline enum ioctl_effect effect_of_f2fs(__u32 number)
{
	switch (number) {
	case 12: /* GET_FEATURES */
	case 14: /* GET_PIN_FILE */
	case 15: /* PRECACHE_EXTENTS */
	case 17: /* GET_COMPRESS_BLOCKS */
	case 21: /* GET_COMPRESS_OPTION */
		return IOCTL_NOTHING;
	}
	return IOCTL_CHANGES;
}

static __always_inline enum ioctl_effect effect_on_file(__u32 command)
{
	switch (command >> 8) {
	case IOCTL_BTRFS:
		return effect_of_btrfs(command & 0xff);
	case IOCTL_F2FS:
		return effect_of_f2fs(command & 0xff);
	}
	switch (command) {
	case IOCTL('f', 2): /* FS_IOC_SETFLAGS */
	case IOCTL('f', 4): /* EXT4_IOC_SETVERSION */
	case IOCTL('f', 9): /* EXT4_IOC_MIGRATE */
	case IOCTL('f', 12): /* EXT4_IOC_ALLOC_DA_BLKS */
	case IOCTL('f', 15): /* EXT4_IOC_MOVE_EXT */
	case IOCTL('f', 19): /* FS_IOC_SET_ENCRYPTION_POLICY */
	case IOCTL('f', 133): /* FS_IOC_ENABLE_VERITY */
	case IOCTL('v', 2): /* FS_IOC_SETVERSION */
	case IOCTL('r', 17): /* FAT_IOCTL_SET_ATTRIBUTES */
	case IOCTL(0xcf, 3): /* CIFS_IOC_COPYCHUNK_FILE */
	case IOCTL(IOCTL_XFS, 10): /* XFS_IOC_ALLOCSP */
	case IOCTL(IOCTL_XFS, 11): /* XFS_IOC_FREESP */
	case IOCTL(IOCTL_XFS, 32): /* FS_IOC_FSSETXATTR */
	case IOCTL(IOCTL_XFS, 36): /* XFS_IOC_ALLOCSP64 */
	case IOCTL(IOCTL_XFS, 37): /* XFS_IOC_FREESP64 */
	case IOCTL(IOCTL_XFS, 40): /* FS_IOC_RESVSP */
	case IOCTL(IOCTL_XFS, 41): /* FS_IOC_UNRESVSP */
	case IOCTL(IOCTL_XFS, 42): /* FS_IOC_RESVSP64 */
	case IOCTL(IOCTL_XFS, 43): /* FS_IOC_UNRESVSP64 */
	case IOCTL(IOCTL_XFS, 57): /* FS_IOC_ZERO_RANGE */
	case IOCTL(IOCTL_XFS, 58): /* XFS_IOC_FREE_EOFBLOCKS */
	case IOCTL(IOCTL_XFS, 109): /* XFS_IOC_SWAPEXT */
	case IOCTL(IOCTL_XFS, 129): /* XFS_IOC_EXCHANGE_RANGE */
	case IOCTL(IOCTL_XFS, 131): /* XFS_IOC_COMMIT_RANGE */
		return IOCTL_CHANGES;
	case IOCTL('f', 7): /* EXT4_IOC_GROUP_EXTEND: the kernel takes CAP_SYS_RESOURCE for it */
	case IOCTL('f', 8): /* EXT4_IOC_GROUP_ADD */
	case IOCTL('f', 16): /* EXT4_IOC_RESIZE_FS */
	case IOCTL('f', 17): /* EXT4_IOC_SWAP_BOOT */
	case IOCTL(IOCTL_XFS, 110): /* XFS_IOC_FSGROWFSDATA */
	case IOCTL(IOCTL_XFS, 111): /* XFS_IOC_FSGROWFSLOG */
	case IOCTL(IOCTL_XFS, 112): /* XFS_IOC_FSGROWFSRT */
	case IOCTL(IOCTL_XFS, 114): /* XFS_IOC_SET_RESBLKS */
	case IOCTL(IOCTL_XFS, 119): /* FIFREEZE */
	case IOCTL(IOCTL_XFS, 120): /* FITHAW */
	case IOCTL(IOCTL_XFS, 121): /* FITRIM */
	case IOCTL(IOCTL_XFS, 123): /* XFS_IOC_ATTRMULTI_BY_HANDLE */
	case IOCTL(IOCTL_XFS, 125): /* XFS_IOC_GOINGDOWN */
		return IOCTL_CHANGES_SYSTEM;
	}
	return IOCTL_NOTHING;
}

/* Devices whose commands make and change block devices and file systems. */
static __always_inline int makes_block_devices(const struct usher_mac_file *file)
{
	if (TYPE(file->mode) != CHARACTER)
		return 0;
	switch (file->special) {
	case DEVICE(10, 234): /* btrfs-control */
	case DEVICE(10, 236): /* mapper/control */
	case DEVICE(10, 237): /* loop-control */
		return 1;
	}
	return 0;
}

/* Consoles, serial lines, pts/0 and so on, by the major number. */
static __always_inline int is_line(__u32 major)
{
	return major == 4 || major == 204 || major == 229 || (major >= 136 && major <= 143);
}

/* Compares the whole number, on any character device, because each driver of a serial line has
 * majors of its own. Commands of other devices with the same type and number, as those of
 * /dev/snd/timer, have a size beside them. */
static __always_inline int types(__u32 command)
{
	switch (command) {
	case IOCTL('T', 0x12): /* TIOCSTI */
	case IOCTL('T', 0x1c): /* TIOCLINUX, which pastes what is selected */
	/* These change what the keys of a console type. */
	case IOCTL('K', 0x47): /* KDSKBENT */
	case IOCTL('K', 0x49): /* KDSKBSENT */
	case IOCTL('K', 0x4b): /* KDSKBDIACR */
	case IOCTL('K', 0x4d): /* KDSETKEYCODE */
	case IOCTL('K', 0xfb): /* KDSKBDIACRUC */
		return 1;
	}
	return 0;
}

static __always_inline enum ioctl_effect effect_of(__u32 command, const struct usher_mac_file *file)
{
	int is_typed = TYPE(file->mode) == CHARACTER && types(command);

	command &= 0xffff;
	if (is_of_descriptor(command))
		return IOCTL_NOTHING;
	switch (TYPE(file->mode)) {
	case BLOCK:
		return effect_on_block_device(command);
	case REGULAR:
	case DIRECTORY:
		return effect_on_file(command);
	}
	if (is_typed)
		return IOCTL_TYPES;
	return makes_block_devices(file) ? IOCTL_CHANGES_SYSTEM : IOCTL_NOTHING;
}

#endif
