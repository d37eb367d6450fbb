package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/longshore-csi/longshore/e2e/testbed"
)

// Prometheus is a running Prometheus.
type Prometheus struct {
	url  string
	http http.Client
}

// target is one process that is scraped, with the labels that Kubernetes' service discovery would have given it.
type target struct {
	address string
	labels  map[string]string
}

// prometheusProgram finds Prometheus, or skips the test.
func prometheusProgram(t testing.TB) string {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Skip("needs prometheus on PATH: `make test` installs it, as root on Debian or Ubuntu")
	}
	return program
}

// startPrometheus runs a Prometheus that scrapes targets every second, until the test ends.
func startPrometheus(t testing.TB, program string, targets []target, rules string) *Prometheus {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(config, prometheusConfig(t, targets, rules), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(context.Background(), program, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:0")
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	lines := newPrometheusLog(log)
	t.Cleanup(func() {
		err := errors.Join(cmd.Process.Kill(), lines.wait()) // its data is of no further use
		_ = cmd.Wait()                                       // it was killed
		if err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the log of prometheus:\n%s", lines.text.String())
		}
	})
	select {
	case address := <-lines.address:
		return &Prometheus{url: "http://" + address, http: http.Client{Timeout: 10 * time.Second}}
	case <-lines.done:
		t.Fatal("prometheus has ended")
	case <-time.After(testbed.Patience):
		t.Fatal("prometheus does not listen")
	}
	return nil
}

func prometheusConfig(t testing.TB, targets []target, rules string) []byte {
	t.Helper()
	rules, err := filepath.Abs(rules)
	if err != nil {
		t.Fatal(err)
	}
	static := []map[string]any{}
	for _, target := range targets {
		static = append(static, map[string]any{"targets": []string{target.address}, "labels": target.labels})
	}
	config, err := yaml.Marshal(map[string]any{
		"global":         map[string]any{"scrape_interval": "1s", "evaluation_interval": "1s"},
		"rule_files":     []string{rules},
		"scrape_configs": []map[string]any{{"job_name": "csi", "static_configs": static}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// prometheusLog reads where Prometheus listens: it was told to take any port.
type prometheusLog struct {
	address chan string
	done    chan struct{}
	err     error
	text    bytes.Buffer // until done
}

func newPrometheusLog(r io.Reader) *prometheusLog {
	l := &prometheusLog{address: make(chan string, 1), done: make(chan struct{})}
	listening := regexp.MustCompile(`msg="Listening on" address=(127\.0\.0\.1:[0-9]+)`)
	go func() {
		defer close(l.done)
		lines := bufio.NewScanner(r)
		for lines.Scan() {
			fmt.Fprintln(&l.text, lines.Text())
			if m := listening.FindStringSubmatch(lines.Text()); m != nil && len(l.address) == 0 {
				l.address <- m[1]
			}
		}
		l.err = lines.Err()
	}()
	return l
}

// wait waits until the process has closed its end.
func (l *prometheusLog) wait() error {
	<-l.done
	return l.err
}

// Query asks one question and gives the values of the answer that are numbers.
func (p *Prometheus) Query(ctx context.Context, promql string) ([]float64, error) {
	var answer struct {
		Result []struct {
			Value [2]any
		}
	}
	if err := p.get(ctx, "query?query="+url.QueryEscape(promql), &answer); err != nil {
		return nil, err
	}
	var values []float64
	for _, r := range answer.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("read the answer to %s: %w", promql, err)
		}
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			values = append(values, value)
		}
	}
	return values, nil
}

// rule is an alert rule as Prometheus sees it.
type rule struct {
	Name, Query, Health, LastError string
}

// Rules lists the rules that were read.
func (p *Prometheus) Rules(ctx context.Context) ([]rule, error) {
	var answer struct {
		Groups []struct{ Rules []rule }
	}
	if err := p.get(ctx, "rules", &answer); err != nil {
		return nil, err
	}
	var all []rule
	for _, g := range answer.Groups {
		all = slices.Concat(all, g.Rules)
	}
	return all, nil
}

func (p *Prometheus) get(ctx context.Context, path string, data any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+"/api/v1/"+path, nil)
	if err != nil {
		return err
	}
	resp, err := p.http.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer := struct {
		Error string
		Data  any
	}{Data: data}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return fmt.Errorf("read the answer to %s: %s, %w", path, resp.Status, err)
	}
	if answer.Error != "" || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask prometheus %s: %s %s", path, resp.Status, answer.Error)
	}
	return nil
}

// question is a query and who asks it.
type question struct{ who, promql string }

// dashboardQuestions reads what the panels and the variables of a Grafana dashboard ask.
func dashboardQuestions(t testing.TB, path string, variables map[string]string) []question {
	t.Helper()
	var d struct {
		Templating struct {
			List []struct{ Name, Definition string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, &d)
	}
	if err != nil {
		t.Fatal(err)
	}
	var old []string
	for name, value := range variables {
		old = append(old, "$"+name, value)
	}
	filled := strings.NewReplacer(old...)
	var all []question
	for _, v := range d.Templating.List {
		if v.Definition == "" {
			continue
		}
		m := regexp.MustCompile(`^label_values\((.*), (\w+)\)$`).FindStringSubmatch(v.Definition)
		if m == nil {
			t.Fatalf("variable %s asks for %s, want label_values", v.Name, v.Definition)
		}
		all = append(all, question{"variable " + v.Name, filled.Replace("count by (" + m[2] + ") (" + m[1] + ")")})
	}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, question{"panel " + p.Title, filled.Replace(target.Expr)})
		}
	}
	return all
}

// alertQuestions takes the values out of alert rules: without the comparison at their end.
func alertQuestions(rules []rule) []question {
	comparison := regexp.MustCompile(`\s(==|>|<) [0-9.]+\s*$`)
	var all []question
	for _, r := range rules {
		all = append(all, question{"alert " + r.Name, comparison.ReplaceAllString(strings.TrimSpace(r.Query), "")})
	}
	return all
}
