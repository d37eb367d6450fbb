package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/longshore-csi/longshore/devcluster"
)

// followPeriod is how often a followed log is looked at.
const followPeriod = 100 * time.Millisecond

func logs(ctx context.Context, c *call) error {
	follow := false
	words, err := c.parse(1, func(fs *flag.FlagSet) {
		c.options.AddDirFlag(fs)
		fs.BoolVar(&follow, "follow", follow, "print new lines until Ctrl-C or the end of the cluster")
		fs.BoolVar(&follow, "f", follow, "short for --follow")
	})
	if err != nil {
		return err
	}
	path := devcluster.Connect(c.options.Dir).Log(words[0])
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no log of %q; `devcluster status` lists the processes", words[0])
	}
	if err != nil {
		return fmt.Errorf("open the log of %q: %w", words[0], err)
	}
	defer f.Close()
	if follow {
		err = followLog(ctx, f, c.stdout)
	} else {
		_, err = io.Copy(c.stdout, f)
	}
	if err != nil {
		return fmt.Errorf("print the log of %q: %w", words[0], err)
	}
	return nil
}

// followLog prints the file and what is added to it, until ctx ends or the file is removed.
func followLog(ctx context.Context, f *os.File, out io.Writer) error {
	tick := time.NewTicker(followPeriod)
	defer tick.Stop()
	for {
		// The order matters: what was written before the removal is still printed.
		_, gone := os.Stat(f.Name())
		if _, err := io.Copy(out, f); err != nil {
			return err
		}
		if gone != nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
