//go:build unix

package state

import (
	"os"

	"golang.org/x/sys/unix"
)

// errHeld says that another process has the lock of a file.
const errHeld = unix.EWOULDBLOCK

// flock locks a file as long as it is open, without waiting.
func flock(file *os.File) error { return unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
