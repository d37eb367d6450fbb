package cli

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/longshore-csi/longshore/devcluster"
)

func status(ctx context.Context, c *call) error {
	output := "text"
	_, err := c.parse(0, func(fs *flag.FlagSet) {
		c.options.AddDirFlag(fs)
		fs.StringVar(&output, "output", output, "output format: text or json")
	})
	if err != nil {
		return err
	}
	if output != "text" && output != "json" {
		return fmt.Errorf("%w: --output=%s: must be text or json", errUsage, output)
	}
	s, err := devcluster.Connect(c.options.Dir).Status(ctx, 0)
	if err != nil {
		return withHint(err)
	}
	if output == "json" {
		encoder := json.NewEncoder(c.stdout)
		encoder.SetIndent("", "  ")
		return encoder.Encode(s)
	}
	return printStatus(c.stdout, s)
}

func printStatus(out io.Writer, s devcluster.Status) error {
	fmt.Fprintf(out, "%s: Kubernetes %s, driver %s, %d nodes, up since %s\nkubeconfig %s\n\n",
		s.Phase, orDash(s.Kubernetes), orDash(strings.Join(s.Drivers, ", ")), len(s.Nodes), s.Started.Format(time.DateTime), s.Kubeconfig)
	if s.Error != "" {
		fmt.Fprintf(out, "error: %s\n\n", s.Error)
	}
	return table(out, s)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func table(out io.Writer, s devcluster.Status) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSTATE\tPID\tRESTARTS\tSINCE\tHTTP\tLAST EXIT")
	for _, p := range s.Processes {
		pid := "-"
		if p.PID != 0 {
			pid = fmt.Sprint(p.PID)
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", p.Name, p.State, pid, p.Restarts, time.Since(p.Since).Round(time.Second),
			orDash(strings.TrimPrefix(p.HTTP, "http://")), p.LastExit)
	}
	return w.Flush()
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
