package cli

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/longshore-csi/longshore/devcluster"
)

func status(ctx context.Context, c *call) error {
	if _, err := c.parse(0, c.options.AddDirFlag); err != nil {
		return err
	}
	s, err := devcluster.Connect(c.options.Dir).Status(ctx, 0)
	if err != nil {
		return withHint(err)
	}
	fmt.Fprintf(c.stdout, "%s: Kubernetes %s, driver %s, %d nodes, up since %s\nkubeconfig %s\n\n", s.Phase, s.Kubernetes, s.Driver, len(s.Nodes), s.Started.Format(time.DateTime), s.Kubeconfig)
	if s.Error != "" {
		fmt.Fprintf(c.stdout, "error: %s\n\n", s.Error)
	}
	return table(c.stdout, s)
}

func table(out io.Writer, s devcluster.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tPID\tRESTARTS\tSINCE\tLAST EXIT")
	for _, p := range s.Processes {
		pid := "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", p.Name, p.State, pid, p.Restarts, time.Since(p.Since).Round(time.Second), p.LastExit)
	}
	return w.Flush()
}

func logs(ctx context.Context, c *call) error {
	words, err := c.parse(1, c.options.AddDirFlag)
	if err != nil {
		return err
	}
	client := devcluster.Connect(c.options.Dir)
	f, err := os.Open(client.Log(words[0]))
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("no log of %q; `devcluster status` lists the processes", words[0])
	}
	if err != nil {
		return fmt.Errorf("open the log of %q: %w", words[0], err)
	}
	defer f.Close()
	_, err = io.Copy(c.stdout, f)
	return err
}

// withHint adds to the error of a command that needs a cluster how to get one.
func withHint(err error) error {
	if errors.Is(err, devcluster.ErrDown) {
		return fmt.Errorf("%w; start one with `devcluster up`", err)
	}
	return err
}

func demonstrate(ctx context.Context, c *call) error {
	var kubeconfig, examples string
	_, err := c.parse(0, func(fs *flag.FlagSet) {
		c.options.AddDirFlag(fs)
		fs.StringVar(&kubeconfig, "kubeconfig", kubeconfig, "kubeconfig of another cluster (empty: the cluster in --dir)")
		fs.StringVar(&examples, "examples", examples, "directory with the examples (empty: examples/ in the checkout around the working directory)")
	})
	if err != nil {
		return err
	}
	return withHint(devcluster.Demo(ctx, devcluster.DemoOptions{Dir: c.options.Dir, Kubeconfig: kubeconfig, Examples: examples}, c.stdout))
}
