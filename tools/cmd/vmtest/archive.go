package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
)

// archive writes an initramfs: cpio, in the format "newc". Source: Linux, Documentation/driver-api/early-userspace/buffer-format.rst.
type archive struct {
	out     *bufio.Writer
	written int64
	inode   int
	known   map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{out: bufio.NewWriterSize(w, 1<<20), known: map[string]bool{"/": true}}
}

const (
	typeFile      = 0o100000
	typeDirectory = 0o040000
)

// entry writes the header of a file, or of a directory.
func (a *archive) entry(name string, mode, size int64) error {
	a.inode++
	name = name[1:] // they are below the root
	fields := []int64{int64(a.inode), mode, 0, 0, 1, 0, size, 0, 0, 0, 0, int64(len(name) + 1), 0}
	header := "070701"
	for _, field := range fields {
		header += fmt.Sprintf("%08X", field)
	}
	return a.padded(append([]byte(header+name), 0))
}

// padded writes data, and zeros until a multiple of four.
func (a *archive) padded(data []byte) error {
	n, err := a.out.Write(data)
	a.written += int64(n)
	return a.pad(err)
}

func (a *archive) pad(err error) error {
	for err == nil && a.written%4 != 0 {
		err = a.out.WriteByte(0)
		a.written++
	}
	return err
}

// directories adds those above a file.
func (a *archive) directories(name string) error {
	dir := path.Dir(name)
	if a.known[dir] {
		return nil
	}
	a.known[dir] = true
	if err := a.directories(dir); err != nil {
		return err
	}
	return a.entry(dir, typeDirectory|0o755, 0)
}

// begin reports whether a file is new, and adds the directories above it.
func (a *archive) begin(name string) (isNew bool, err error) {
	if a.known[name] {
		return false, nil
	}
	a.known[name] = true
	return true, a.directories(name)
}

// contents adds a file.
func (a *archive) contents(name string, data []byte, mode int64) error {
	isNew, err := a.begin(name)
	if err != nil || !isNew {
		return err
	}
	if err := a.entry(name, typeFile|mode, int64(len(data))); err != nil {
		return err
	}
	return a.padded(data)
}

// file adds a file of this machine.
func (a *archive) file(name, source string, mode int64) error {
	isNew, err := a.begin(name)
	if err != nil || !isNew {
		return err
	}
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := a.entry(name, typeFile|mode, info.Size()); err != nil {
		return err
	}
	n, err := io.CopyN(a.out, file, info.Size())
	a.written += n
	return a.pad(err)
}

// close ends the archive.
func (a *archive) close() error {
	if err := a.entry("/TRAILER!!!", 0, 0); err != nil {
		return err
	}
	return a.out.Flush()
}
