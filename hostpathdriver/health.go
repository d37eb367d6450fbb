package hostpathdriver

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// dirTimeout bounds the look at the state directory: a network file system whose
// server is gone does not answer.
const dirTimeout = 5 * time.Second

// dirCheck looks at a directory, in one goroutine at a time.
type dirCheck struct {
	path string
	stat func(path string) (os.FileInfo, error)

	mu sync.Mutex
	// running is the look in progress; nil when there is none.
	running *dirLook
}

// dirLook is a look at the directory. err is valid when done is closed.
type dirLook struct {
	done chan struct{}
	err  error
}

func newDirCheck(path string) *dirCheck { return &dirCheck{path: path, stat: os.Stat} }

// check reports whether the directory exists. While an earlier look has no answer
// it waits for that one.
func (c *dirCheck) check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, dirTimeout)
	defer cancel()
	look := c.start()
	select {
	case <-look.done:
		return look.err
	case <-ctx.Done():
		return fmt.Errorf("state directory %q: no answer from the file system: %w", c.path, ctx.Err())
	}
}

func (c *dirCheck) start() *dirLook {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running != nil {
		return c.running
	}
	look := &dirLook{done: make(chan struct{})}
	c.running = look
	go func() {
		look.err = c.look()
		c.mu.Lock()
		c.running = nil
		c.mu.Unlock()
		close(look.done)
	}()
	return look
}

func (c *dirCheck) look() error {
	info, err := c.stat(c.path)
	if err != nil {
		return fmt.Errorf("look at state directory: %w", err)
	}
	if !info.IsDir() {
		return fmt.Errorf("state directory %q: is no directory", c.path)
	}
	return nil
}
