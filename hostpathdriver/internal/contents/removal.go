package contents

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// removeTree removes a directory with all that is below it; see walk for what it costs. It makes nothing, so that it works on a full disk, too. When ctx ends in the middle, the rest is
// there, and removeTree can be called again. A root that does not exist is no error.
func removeTree(ctx context.Context, root string) error {
	w, err := newWalk(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer w.close()
	// found says that the present directory had a name since its first one was looked for: what was there may be there still.
	for found := false; ; {
		name, offset, err := w.next()
		switch {
		case err != nil:
		case ctx.Err() != nil:
			err = ctx.Err()
		case name != "":
			level := len(w.above)
			err = removeName(w, name, offset)
			found = len(w.above) == level
		case found:
			found, err = false, w.again()
		case len(w.above) > 0:
			found, err = true, w.leave()
		default:
			err = os.Remove(root)
			if errors.Is(err, fs.ErrNotExist) { // another call was faster
				err = nil
			}
			return err
		}
		if err != nil {
			return fmt.Errorf("remove %s, %d levels below it: %w", root, len(w.above), err)
		}
	}
}

// removeName removes a name of the present directory, or enters what it names if that is not empty.
func removeName(w *walk, name string, offset int64) error {
	err := unix.Unlinkat(w.fd, name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = unix.Unlinkat(w.fd, name, unix.AT_REMOVEDIR)
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.ENOTEMPTY):
		return w.enter(name, offset)
	case err != nil:
		return fmt.Errorf("remove %.64q: %w", name, err)
	}
	return nil
}
