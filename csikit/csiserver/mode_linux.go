package csiserver

import (
	"os"
	"syscall"
)

// limitMode bounds the permissions of the file that a socket gets when it is bound: until they are set on the file itself, others could connect. A sandbox
// that cannot do it is no worse than other systems, where they are only set on the file.
func limitMode(fd uintptr, mode os.FileMode) { _ = syscall.Fchmod(int(fd), uint32(mode.Perm())) }
