//go:build !linux

package csiserver

import "os"

// limitMode is for Linux: elsewhere the permissions are set on the file when it is there.
func limitMode(uintptr, os.FileMode) {}
