//go:build !unix

package state

import (
	"errors"
	"os"
)

// errHeld says that another process has the lock of a file.
var errHeld = errors.New("the file is locked")

// flock locks a file as long as it is open, without waiting.
func flock(*os.File) error { return errors.ErrUnsupported }
