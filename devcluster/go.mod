module github.com/longshore-csi/longshore/devcluster

go 1.26.0

require (
	github.com/google/go-cmp v0.7.0
	github.com/moby/sys/mountinfo v0.7.2
	go.uber.org/goleak v1.3.0
	golang.org/x/mod v0.41.0
	golang.org/x/sys v0.48.0
)

replace (
	github.com/longshore-csi/longshore/attacher => ../attacher
	github.com/longshore-csi/longshore/csikit => ../csikit
	github.com/longshore-csi/longshore/hostpathdriver => ../hostpathdriver
	github.com/longshore-csi/longshore/kubeletplugin => ../kubeletplugin
	github.com/longshore-csi/longshore/livenessprobe => ../livenessprobe
	github.com/longshore-csi/longshore/provisioner => ../provisioner
	github.com/longshore-csi/longshore/registrar => ../registrar
	github.com/longshore-csi/longshore/topology => ../topology
)
