# Completion of gpulua's command line, for fish. Behind the script everything is the script's own.
function __gpulua_is_ours
    set -l words (commandline -opc)
    set -l takes_value 0
    for word in $words[2..-1]
        if test $takes_value = 1
            set takes_value 0
        else if contains -- $word @TAKERS@
            set takes_value 1
        else if test $word = -- -o $word = -
            return 1
        else if not string match -q -- '-*' $word
            return 1
        end
    end
end
@OPTIONS@
