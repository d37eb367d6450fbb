package build

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"runtime"
	"strings"
	"time"
)

// Servers are the base URLs of published programs. Nothing is downloaded from an empty one.
type Servers struct {
	// Kubernetes has VERSION/bin/OS/ARCH/PROGRAM, and beside each program its SHA-256 in PROGRAM.sha256.
	Kubernetes string
	// Etcd has VERSION/etcd-VERSION-OS-ARCH.tar.gz and VERSION/SHA256SUMS.
	Etcd string
}

// DefaultServers are those of the projects, or of the environment variables LONGSHORE_KUBERNETES_URL and LONGSHORE_ETCD_URL where they are
// set; an empty value means that nothing is downloaded.
func DefaultServers() Servers {
	s := Servers{Kubernetes: "https://dl.k8s.io/release", Etcd: "https://github.com/etcd-io/etcd/releases/download"}
	for name, value := range map[string]*string{"LONGSHORE_KUBERNETES_URL": &s.Kubernetes, "LONGSHORE_ETCD_URL": &s.Etcd} {
		if given, set := os.LookupEnv(name); set {
			*value = given
		}
	}
	return s
}

const (
	// connectTimeout is the time for a connection, and for its TLS handshake: a machine without internet loses no more than that for each
	// of the two servers.
	connectTimeout = 3 * time.Second
	// stallTimeout is the time for the next bytes of a download.
	stallTimeout = 30 * time.Second
	// maxDownload is more than any program has.
	maxDownload = 1 << 30
)

var (
	errChecksum = errors.New("wrong checksum")
	errStalled  = errors.New("no more bytes came for a while")
)

// asset is a published program.
type asset struct {
	program, url, sums string
	// member is the path of the program in the archive that the URL names; empty: the URL names the program itself.
	member string
}

// asset says where a program is published; false: nowhere.
func (s Servers) asset(v versions, program string) (asset, bool) {
	base, version := s.Kubernetes, v.kubernetes
	if program == Etcd {
		base, version = s.Etcd, v.etcd
	}
	if base == "" || version == "" {
		return asset{}, false
	}
	base = strings.TrimSuffix(base, "/") + "/" + version
	if program == Etcd {
		name := fmt.Sprintf("etcd-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH)
		return asset{program: program, url: base + "/" + name + ".tar.gz", sums: base + "/SHA256SUMS", member: name + "/etcd"}, true
	}
	file := strings.Join([]string{base, "bin", runtime.GOOS, runtime.GOARCH, program}, "/")
	return asset{program: program, url: file, sums: file + ".sha256"}, true
}

// fetcher downloads programs. A server that does not answer is not asked again.
type fetcher struct {
	client  *http.Client
	stall   time.Duration
	silent  map[string]bool // by host
	servers Servers
}

func newFetcher(s Servers, connect, stall time.Duration) *fetcher {
	connect, stall = cmp.Or(connect, connectTimeout), cmp.Or(stall, stallTimeout)
	transport := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: connect}).DialContext,
		TLSHandshakeTimeout: connect, ResponseHeaderTimeout: 2 * connect, ForceAttemptHTTP2: true,
	}
	return &fetcher{client: &http.Client{Transport: transport}, stall: stall, silent: map[string]bool{}, servers: s}
}

// close ends the idle connections.
func (f *fetcher) close() { f.client.CloseIdleConnections() }

// published says where a program can be downloaded; false: nowhere, or the server did not answer before.
func (f *fetcher) published(v versions, program string) (asset, bool) {
	a, ok := f.servers.asset(v, program)
	return a, ok && !f.silent[host(a.url)]
}

// fetch downloads a program, checks it against the published checksum and writes it to the path. An error leaves no file there.
func (f *fetcher) fetch(ctx context.Context, a asset, to string) error {
	sums, err := f.text(ctx, a.sums)
	if err != nil {
		return err
	}
	want, err := checksum(sums, path.Base(a.url))
	if err != nil {
		return fmt.Errorf("%s: %w", a.sums, err)
	}
	if a.member == "" {
		return f.download(ctx, a.url, want, to)
	}
	archive := to + ".tar.gz"
	defer func() { _ = os.Remove(archive) }()
	if err := f.download(ctx, a.url, want, archive); err != nil {
		return err
	}
	if err := unpack(archive, a.member, to); err != nil {
		return errors.Join(fmt.Errorf("%s: %w", a.url, err), remove(to))
	}
	return nil
}

// download writes what a URL has to a program file, if it has the checksum.
func (f *fetcher) download(ctx context.Context, from, want, to string) error {
	file, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	hash := sha256.New()
	err = f.get(ctx, from, io.MultiWriter(file, hash))
	if got := hex.EncodeToString(hash.Sum(nil)); err == nil && got != want {
		err = fmt.Errorf("%s: %w: SHA-256 is %s, published is %s", from, errChecksum, got, want)
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, remove(to))
	}
	return nil
}

func (f *fetcher) text(ctx context.Context, from string) (string, error) {
	var text strings.Builder
	err := f.get(ctx, from, &text)
	return text.String(), err
}

// get copies what a URL has. A server with which that does not work is silent from then on.
func (f *fetcher) get(ctx context.Context, from string, to io.Writer) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return err
	}
	resp, err := f.client.Do(req)
	if err != nil {
		f.silent[req.URL.Host] = true
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: the server answers %s", from, resp.Status)
	}
	stall := time.AfterFunc(f.stall, func() { cancel(errStalled) })
	defer stall.Stop()
	body := io.LimitReader(resp.Body, maxDownload)
	if _, err := io.Copy(to, readerFunc(func(p []byte) (int, error) {
		stall.Reset(f.stall)
		return body.Read(p)
	})); err != nil {
		f.silent[req.URL.Host] = errors.Is(context.Cause(ctx), errStalled)
		return fmt.Errorf("%s: %w", from, cmp.Or(context.Cause(ctx), err))
	}
	return nil
}

// readerFunc makes a reader of a function.
type readerFunc func(p []byte) (int, error)

// Read calls the function.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// checksum finds the SHA-256 of a file: the only word of the text, or on the line that names the file.
func checksum(text, file string) (string, error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		words := strings.Fields(lines.Text())
		if len(words) != 1 && (len(words) != 2 || strings.TrimPrefix(words[1], "*") != file) {
			continue
		}
		if sum, err := hex.DecodeString(words[0]); err == nil && len(sum) == sha256.Size {
			return strings.ToLower(words[0]), nil
		}
	}
	return "", fmt.Errorf("no SHA-256 of %s", file)
}

// unpack writes one program of a compressed archive.
func unpack(archive, member, to string) error {
	in, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer in.Close()
	plain, err := gzip.NewReader(in)
	if err != nil {
		return err
	}
	files := tar.NewReader(plain)
	for {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive has no %s", member)
		}
		if err != nil {
			return err
		}
		if path.Clean(header.Name) == member && header.Typeflag == tar.TypeReg {
			break
		}
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(files, maxDownload))
	return errors.Join(err, out.Close())
}

func host(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Host
}

func remove(file string) error {
	if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
