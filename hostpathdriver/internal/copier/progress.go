package copier

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// progressVersion changes with the meaning of the fields of progress.
const progressVersion = 1

// identity distinguishes a file from all others of its file system, also from a later
// one with the same inode number. The device number is not part of it: it may
// change when the machine starts again.
type identity struct {
	Inode uint64 `json:"inode"`
	Born  int64  `json:"born"` // ns, 0 where the file system does not know
}

// task is which copy it is: another one starts at the beginning.
type task struct {
	Version int      `json:"version"`
	Kind    string   `json:"kind"`
	From    string   `json:"from"`
	To      string   `json:"to"`
	Source  identity `json:"source"`
	Target  identity `json:"target"`
}

// extent is how far the copy of one file is: everything before At is on disk. A
// source that grew, or was written to, is no other file.
type extent struct {
	Source   identity `json:"source"`
	Target   identity `json:"target"`
	At       int64    `json:"at"`
	Size     int64    `json:"-"`        // of the source in this call
	Modified int64    `json:"modified"` // time of the source when its copy began, in ns
}

// progress is what the file at Options.Progress says. It is written when what
// it says is on disk.
type progress struct {
	Task      task   `json:"task"`
	Complete  bool   `json:"complete"`
	Reflinked bool   `json:"reflinked"`
	Torn      bool   `json:"torn"`
	Passed    int64  `json:"passed"`
	Path      []byte `json:"path,omitempty"` // last entry of a tree; names need not be UTF-8
	Partial   bool   `json:"partial"`        // of that entry, or the file, there is only File
	File      extent `json:"file"`
}

// newTask describes a copy between two open files or directories.
func newTask(kind, from, to string, source, target *os.File) (task, error) {
	t := task{Version: progressVersion, Kind: kind, From: from, To: to}
	var errSource, errTarget error
	t.Source, errSource = identify(source)
	t.Target, errTarget = identify(target)
	return t, errors.Join(errSource, errTarget)
}

func identify(file *os.File) (identity, error) {
	var x unix.Statx_t
	if err := unix.Statx(int(file.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_INO|unix.STATX_BTIME, &x); err != nil {
		return identity{}, fmt.Errorf("identify %s: %w", file.Name(), err)
	}
	return identity{Inode: x.Ino, Born: x.Btime.Sec*1e9 + int64(x.Btime.Nsec)}, nil
}

// load reads the progress of a copy. A file that is missing, torn, or of
// another copy means that nothing is done yet.
func load(path string, of task) progress {
	none := progress{Task: of}
	data, err := os.ReadFile(path)
	if path == "" || err != nil {
		return none
	}
	var p progress
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&p); err != nil || p.Task != of {
		return none
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return none
	}
	return p
}

// remember replaces the progress file durably.
func (j *job) remember(p *progress) error {
	p.Reflinked, p.Torn = j.result.Reflinked, j.result.Torn
	if err := j.replace(p); err != nil {
		return fmt.Errorf("write progress file: %w", err)
	}
	return nil
}

func (j *job) replace(content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	j.step("write progress")
	file, err := os.OpenFile(unfinished(j.Progress), os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	j.step("rename progress")
	if err := os.Rename(file.Name(), j.Progress); err != nil {
		return err
	}
	j.step("sync progress")
	return syncDir(filepath.Dir(j.Progress))
}

// Forget removes a progress file and what a crash may have left beside it.
// None is no error.
func Forget(progress string) error {
	for _, name := range []string{unfinished(progress), progress} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("forget the progress of a copy: %w", err)
		}
	}
	return nil
}

func unfinished(progress string) string {
	return progress + ".new"
}

func syncDir(dir string) error {
	handle, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(handle.Sync(), handle.Close())
}
