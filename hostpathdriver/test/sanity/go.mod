module github.com/longshore-csi/longshore/hostpathdriver/test/sanity

go 1.26.0

require (
	github.com/longshore-csi/longshore/csikit v0.0.0
	github.com/longshore-csi/longshore/hostpathdriver v0.0.0
)

replace (
	github.com/longshore-csi/longshore/csikit => ../../../csikit
	github.com/longshore-csi/longshore/hostpathdriver => ../..
)
