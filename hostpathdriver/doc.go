// Package hostpathdriver is a complete CSI driver that keeps volumes in directories and files of the machine. It is for development clusters, and for tests of
// everything around a driver. A driver for real storage is made with package driverkit, as this one is; make new-driver writes its beginning.
//
// The public API is Options and Run. Below it are packages volume (what a volume is, pure), contents (directories and files), backend (the
// parts of a driverkit.Driver), leader (several controllers on one state directory) and proxy (connections of clients joined with those of a driver elsewhere).
//
// Do not use it to keep data that matters: a volume lives on one machine. The size of an image or a device is enforced, that of a directory is not.
package hostpathdriver
