package quota

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Of the commands of quotactl_fd, these are the ones that work alike on all
// file systems, and that wait for no frozen file system in order to read.
// Source: linux/dqblk_xfs.h; fs/quota/quota.c, quotactl_cmd_write.
const (
	commandGet   = 'X'<<8 + 3 // Q_XGETQUOTA
	commandSet   = 'X'<<8 + 4 // Q_XSETQLIM
	commandState = 'X'<<8 + 8 // Q_XGETQSTATV

	ofProjects = 2 // PRJQUOTA

	stateAccounted = 1 << 4 // FS_QUOTA_PDQ_ACCT
	stateEnforced  = 1 << 5 // FS_QUOTA_PDQ_ENFD

	fieldHardBytes = 1 << 3 // FS_DQ_BHARD
)

// sector is the unit of accounts in bytes.
const sector = 512

// account is what a project has and may have.
type account struct {
	bytes, limit uint64 // in sectors
	inodes       uint64
	others       bool // there are limits, or contents, of other kinds
}

func (a account) unused() bool { return a == account{} }

// diskQuota is struct fs_disk_quota.
type diskQuota struct {
	version, flags       int8
	fields               uint16
	id                   uint32
	hardBytes, softBytes uint64
	hardInodes           uint64
	softInodes           uint64
	bytes, inodes        uint64
	_                    [16]byte // timers and warnings
	hardRealtime         uint64
	softRealtime         uint64
	realtime             uint64
	_                    [16]byte
}

// quotaState is struct fs_quota_statv.
type quotaState struct {
	version, _ int8
	flags      uint16
	_          [39]uint32
}

// account returns that of a project, which is empty for one that was never
// used.
func (d *directory) account(project uint32) (account, error) {
	var q diskQuota
	err := d.quotactl(commandGet, project, unsafe.Pointer(&q))
	if errors.Is(err, unix.ENOENT) {
		return account{}, nil
	}
	if err != nil {
		return account{}, fmt.Errorf("read the quota of project %d: %w", project, err)
	}
	return account{
		bytes: q.bytes, limit: q.hardBytes, inodes: q.inodes,
		others: q.softBytes|q.hardInodes|q.softInodes|q.hardRealtime|q.softRealtime|q.realtime != 0,
	}, nil
}

// setAccount sets how many sectors a project may have; 0 is no limit.
func (d *directory) setAccount(project uint32, limit uint64) error {
	q := diskQuota{version: 1, flags: 1 << 1 /* FS_PROJ_QUOTA */, fields: fieldHardBytes, id: project, hardBytes: limit}
	if err := d.quotactl(commandSet, project, unsafe.Pointer(&q)); err != nil {
		return fmt.Errorf("set the quota of project %d: %w", project, err)
	}
	return nil
}

// state returns what is on for the file system.
func (d *directory) state() (uint16, error) {
	state := quotaState{version: 1}
	if err := d.quotactl(commandState, 0, unsafe.Pointer(&state)); err != nil {
		return 0, fmt.Errorf("read the state of quotas: %w", err)
	}
	return state.flags, nil
}

func (d *directory) quotactl(command uintptr, project uint32, data unsafe.Pointer) error {
	_, _, errno := unix.Syscall6(unix.SYS_QUOTACTL_FD, d.Fd(), command<<8|ofProjects, uintptr(project), uintptr(data), 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}
