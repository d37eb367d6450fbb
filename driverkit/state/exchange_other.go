//go:build !linux

package state

import "errors"

// exchange is for Linux.
func exchange(string, string) error { return errors.ErrUnsupported }
