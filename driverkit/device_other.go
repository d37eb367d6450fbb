//go:build !linux

package driverkit

import "errors"

func identify(string) (deviceID, error) { return deviceID{}, errors.ErrUnsupported }

func isBlockDevice(string) bool { return false }

func sameDevice(string, string) bool { return false }
